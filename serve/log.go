package serve

import (
	"io"
	"log/slog"
	"os"
)

// NewLog makes the log of a daemon: lines of text or of JSON. level can be
// changed while it runs. Where a journal takes the lines it adds the time
// itself.
func NewLog(w io.Writer, format string, level *slog.LevelVar) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(GroupFailures(slog.NewJSONHandler(w, o), failurePeriod))
	}
	if os.Getenv("JOURNAL_STREAM") != "" {
		o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(GroupFailures(slog.NewTextHandler(w, o), failurePeriod))
}
