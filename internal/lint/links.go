package lint

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

var (
	inlineLink    = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	referenceLink = regexp.MustCompile(`^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s|$)`)
	codeSpan      = regexp.MustCompile("`[^`]*`")
	heading       = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*\s*$`)
)

// Links checks that what a Markdown page links to within the repository is
// there: the file or folder, and the heading if the link names one.
func Links(root, page string) []Finding {
	content, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return []Finding{{File: page, Msg: err.Error()}}
	}
	var out []Finding
	prose(string(content), func(n int, line string) {
		line = codeSpan.ReplaceAllString(line, "")
		targets := inlineLink.FindAllStringSubmatch(line, -1)
		targets = append(targets, referenceLink.FindAllStringSubmatch(line, -1)...)
		for _, t := range targets {
			if why := broken(root, page, t[1]); why != "" {
				out = append(out, Finding{page, n, fmt.Sprintf("link to %s: %s", t[1], why)})
			}
		}
	})
	return out
}

// prose calls visit for each line that is not in a fenced block of code.
func prose(text string, visit func(n int, line string)) {
	fence := ""
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
			fence = trimmed[:3]
		default:
			visit(i+1, line)
		}
	}
}

// broken says what is wrong with a link, or nothing. Links to elsewhere are
// not followed.
func broken(root, page, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return "not a link: " + err.Error()
	}
	if u.Scheme != "" || u.Host != "" {
		return ""
	}
	if strings.HasPrefix(u.Path, "/") {
		return "is absolute: link relative to the page"
	}
	file := page
	if u.Path != "" {
		file = path.Join(path.Dir(page), u.Path)
	}
	if strings.HasPrefix(file, "../") {
		return "leaves the repository"
	}
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		return "no such file or folder in the repository"
	}
	if u.Fragment == "" || path.Ext(file) != ".md" {
		return ""
	}
	content, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return err.Error()
	}
	if !anchors(string(content))[u.Fragment] {
		return "no such heading in " + file
	}
	return ""
}

// anchors is the set of names that a page's headings can be linked by: small
// letters, digits, dashes for spaces, and -1, -2 … for one met again.
func anchors(text string) map[string]bool {
	set := make(map[string]bool)
	met := make(map[string]int)
	prose(text, func(_ int, line string) {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			return
		}
		var b strings.Builder
		for _, r := range strings.ToLower(m[1]) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				b.WriteRune(r)
			}
		}
		name := b.String()
		if n := met[name]; n > 0 {
			set[fmt.Sprintf("%s-%d", name, n)] = true
		}
		met[name]++
		set[name] = true
	})
	return set
}
