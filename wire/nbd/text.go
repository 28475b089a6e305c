package nbd

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// clip cuts s to MaxString bytes, at the start of a character.
func clip(s string) string {
	if len(s) <= MaxString {
		return s
	}
	n := MaxString
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// checkString holds a string of the peer's, or of ours, against what the
// document allows. ("Conventions")
func checkString(what, s string) error {
	switch {
	case len(s) > MaxString:
		return fmt.Errorf("%s has %d bytes: NBD allows %d, shorten it", what, len(s), MaxString)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%s %s contains a NUL character, which NBD does not allow", what, quote(s))
	case !utf8.ValidString(s):
		return fmt.Errorf("%s %s is not UTF-8, which NBD demands", what, quote(s))
	}
	return nil
}

// quoteMax is how much of a peer's string a message repeats, in bytes.
const quoteMax = 128

// quote makes a string of the peer's fit to print: escaped and of bounded
// length.
func quote(s string) string {
	if len(s) > quoteMax {
		return fmt.Sprintf("%q… (%d bytes)", s[:quoteMax], len(s))
	}
	return fmt.Sprintf("%q", s)
}
