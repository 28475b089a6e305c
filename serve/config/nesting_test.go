package config

import (
	"strings"
	"testing"
)

// The parser takes gigabytes for a few kilobytes of brackets: they are counted
// before it sees them.
func TestDeepNestingIsRefusedBeforeParsing(t *testing.T) {
	for name, text := range map[string]string{
		"brackets": strings.Repeat("[", 500000),
		"braces":   "disks: " + strings.Repeat("{a: ", 100000),
		"dashes":   strings.Repeat("- ", 300000) + "x",
		"lines":    strings.Repeat("a: [\n", maxNesting+1),
	} {
		if _, err := Parse("f.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "nested deeper than 128") {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	// At the bound the parser decides.
	deep := "disks: " + strings.Repeat("[", maxNesting) + strings.Repeat("]", maxNesting)
	if _, err := Parse("f.yaml", []byte(deep)); err != nil && strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("at the bound: %v", err)
	}
}
