package config

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of settings into docs/serve.md")

const page, example = "../../docs/serve.md", "../../docs/serve.yaml"

// table is the settings as Markdown. What a driver lists is left out: this
// package knows no drivers.
func table() string {
	var b strings.Builder
	b.WriteString("\n| setting | default | of | meaning |\n|---|---|---|---|\n")
	for i := range Settings {
		s := &Settings[i]
		name := "`--" + s.Name + "`"
		if s.Short != "" {
			name += ", `-" + s.Short + "`"
		}
		if s.Value != "" {
			name += " " + s.Value
		}
		of := "daemon"
		if s.Disk() {
			of = "disk"
		}
		if s.Restart {
			of += "; restart"
		}
		help := s.Help
		if len(s.Allowed) > 0 {
			help += ": " + strings.Join(s.Allowed, ", ")
		}
		b.WriteString("| " + name + " | " + s.Default + " | " + of + " | " + help + " |\n")
	}
	return b.String() + "\n"
}

func TestPageHasTheSettings(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	re := regexp.MustCompile(`(?s)(<!-- settings:[^\n]*-->\n).*?(<!-- end of settings -->)`)
	want := re.ReplaceAllString(string(text), "${1}"+strings.ReplaceAll(table(), "$", "$$")+"${2}")
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Error("the table of settings in docs/serve.md is old: go test ./serve/config -update writes it")
	}
}

func TestExampleIsValidAndComplete(t *testing.T) {
	l, err := LoadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Build(l); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(Names(false), []string{"disks", "path", "name", "node", "options"}) {
		if !regexp.MustCompile(`(?m)^[ -]*\{?` + name + `:`).Match(text) {
			t.Errorf("docs/serve.yaml lacks %s", name)
		}
	}
}
