package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/platter-storage/platter/api"
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/serve"
)

func newStatus() *cobra.Command {
	var address, tokenFile string
	var asJSON bool
	var watch time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "ask a running daemon what it serves and what it has counted",
		Long: `Status asks a daemon that was started with platter serve --http. It answers also
while the storage of a disk hangs.

Exit codes: 0 it answered, 1 it did not, 2 the command line is wrong.`,
		Example: `  platter serve --http unix:/run/platter.http disk.img
  platter status --http unix:/run/platter.http
  platter status --http http://localhost:8080 --watch 1s
  platter status --http unix:/run/platter.http --json | jq .in_flight`,
		Args: args(0, 0, "platter status --http ADDRESS"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client(address, tokenFile)
			if err != nil {
				return err
			}
			if watch > 0 {
				return watchStatus(cmd.Context(), cmd.OutOrStdout(), c, watch)
			}
			return showStatus(cmd.Context(), cmd.OutOrStdout(), c, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&address, "http", "", "where the daemon answers: unix:`PATH` or http://HOST:PORT")
	f.StringVar(&tokenFile, "http-token", "", "the `FILE` with the daemon's token, if it asks for one")
	f.BoolVar(&asJSON, "json", false, "print the daemon's answer as it is")
	f.DurationVar(&watch, "watch", 0, "print the rates of each `PERIOD` (1s), until interrupted")
	return cmd
}

func client(address, tokenFile string) (*api.Client, error) {
	if address == "" {
		return nil, usagef("which daemon? --http unix:PATH or http://HOST:PORT, as platter serve --http printed it")
	}
	token := ""
	if tokenFile != "" {
		b, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, err
		}
		token = strings.TrimSpace(string(b))
	}
	c, err := api.NewClient(address, token)
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

func showStatus(ctx context.Context, w io.Writer, c *api.Client, asJSON bool) error {
	if asJSON {
		var text json.RawMessage
		if err := c.Ask(ctx, "GET", "/api/v1/status", nil, &text); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "%s\n", text)
		return err
	}
	var s serve.Status
	if err := c.Ask(ctx, "GET", "/api/v1/status", nil, &s); err != nil {
		return err
	}
	var disks []serve.DiskStatus
	if err := c.Ask(ctx, "GET", "/api/v1/disks", nil, &disks); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DISK\tSIZE\tPATH\tCLIENTS\tLIMITS")
	for i := range disks {
		d := &disks[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", d.Name, block.FormatSize(d.Size), d.Path, clientsOf(&s, d), orDash(d.Throttle))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return s.WriteText(w)
}

func clientsOf(s *serve.Status, d *serve.DiskStatus) (n int) {
	for _, c := range s.Clients {
		for _, e := range d.Exports {
			if e.Name == c.Export || c.Export == "" && e.Default {
				n++
			}
		}
	}
	for _, f := range d.FrontEnds {
		if f.Connected {
			n++
		}
	}
	return n
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// watchStatus prints a line for each export and period in which it had
// requests, and one for all in which there were none.
func watchStatus(ctx context.Context, w io.Writer, c *api.Client, every time.Duration) error {
	if every < 100*time.Millisecond {
		return usagef("--watch %v is too short: at least 100ms", every)
	}
	var before serve.Status
	if err := c.Ask(ctx, "GET", "/api/v1/status", nil, &before); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
		var now serve.Status
		if err := c.Ask(ctx, "GET", "/api/v1/status", nil, &now); err != nil {
			return err
		}
		if _, err := io.WriteString(w, rates(&before, &now)); err != nil {
			return err
		}
		before = now
	}
}

// rates are what was done between two answers.
func rates(before, now *serve.Status) string {
	dt := now.UptimeSeconds - before.UptimeSeconds
	old := map[string]serve.ExportStats{}
	for _, e := range before.Exports {
		old[e.Name] = e
	}
	var b strings.Builder
	at := time.Now().Format(time.TimeOnly)
	for _, e := range now.Exports {
		for op := range block.NumOps {
			o, was := e.Operations[op.String()], old[e.Name].Operations[op.String()]
			if n := o.Requests - was.Requests; n > 0 && dt > 0 {
				fmt.Fprintf(&b, "%s  %-20s %-12s %10.0f/s  %10s/s  %d errors, %d in flight in all\n", at, e.Name, op, float64(n)/dt,
					block.FormatSize(int64(float64(o.Bytes-was.Bytes)/dt)), o.Errors-was.Errors, now.InFlight)
			}
		}
	}
	if b.Len() == 0 {
		fmt.Fprintf(&b, "%s  idle, %d clients, %d in flight\n", at, now.Connections, now.InFlight)
	}
	return b.String()
}
