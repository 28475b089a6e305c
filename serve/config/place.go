package config

import (
	"fmt"
	"strings"
)

// Place is where something was written: in a file, or as a flag.
type Place struct {
	File string // empty: on the command line
	Line int    // from 1
	Col  int    // from 1, in characters
	Flag string // the flag's name; empty: an argument
}

// String is file:line:column or --flag; empty for an argument.
func (p Place) String() string {
	switch {
	case p.File != "" && p.Line > 0:
		return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
	case p.File != "":
		return p.File
	case p.Flag != "":
		return "--" + p.Flag
	}
	return ""
}

// Text is a value as it was written, and where.
type Text struct {
	Value string
	At    Place
}

// Error is a mistake in what the user asked for: where, what, and what to do.
// Programs exit with the status of a usage error.
type Error struct {
	At  Place
	Msg string
	Err error // the cause, where there is one; Msg then says the whole of it
}

// Error is the place, where there is one, and the message.
func (e *Error) Error() string {
	if at := e.At.String(); at != "" {
		return at + ": " + e.Msg
	}
	return e.Msg
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

func errorAt(at Place, format string, args ...any) error {
	return &Error{At: at, Msg: fmt.Sprintf(format, args...)}
}

// oneOf says what is allowed, and the nearest to what was given.
func oneOf(given string, allowed []string) string {
	s := "choose one of " + strings.Join(allowed, ", ")
	if near := Nearest(given, allowed); near != "" {
		s += fmt.Sprintf("; did you mean %s?", near)
	}
	return s
}
