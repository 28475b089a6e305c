package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A disk that is named as the pid file by mistake keeps its content.
func TestPIDFileDoesNotOverwriteADisk(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"disk": strings.Repeat("data", 1000), "text": "not a number\n", "zeroes": string(make([]byte, 4096))} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := takePIDFile(path); err == nil || !strings.Contains(err.Error(), "choose another name") {
			t.Errorf("%s: taken as a pid file: %v", name, err)
			p.release()
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s: the content has changed", name)
		}
	}
	for name, content := range map[string]string{"empty": "", "stale": "12345\n"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := takePIDFile(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p.release()
	}
}
