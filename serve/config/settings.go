package config

import (
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/platter-storage/platter/block"
)

// Setting is one thing that a user can say: as a flag, at the top of the
// configuration file, or, where it is of a disk, at one of the file's disks.
// Flags, the file's checks, help, completion and documentation come from here.
type Setting struct {
	Name, Help string
	// Value is how help calls the value; empty where it is on or off.
	Value   string
	Default string // what holds without it, for people
	// Allowed lists the values there are, where they can be listed. A
	// setting that a driver interprets takes them from the driver.
	Allowed []string
	Driver  bool
	// Many: it may be given several times.
	Many bool
	// Restart: a reload does not take it up.
	Restart bool
	// Short is the flag of one letter.
	Short string

	daemon func(c *Config, v Text) error
	disk   func(d *Disk, v Text) error
}

// Disk reports whether the setting is of a disk.
func (s *Setting) Disk() bool { return s.disk != nil || s.Driver }

// Bool reports whether the setting is on or off.
func (s *Setting) Bool() bool { return s.Value == "" }

// Values lists what is allowed, or nil where it is open.
func (s *Setting) Values() []string {
	if o := s.driverOption(); o != nil && o.Type == block.OptEnum {
		return o.Enum
	} else if o != nil && o.Type == block.OptBool {
		return []string{"on", "off"}
	}
	return s.Allowed
}

// driverOption is what the driver of files says of the setting.
func (s *Setting) driverOption() *block.Option {
	if !s.Driver {
		return nil
	}
	d, err := block.FindDriver("file")
	if err != nil {
		return nil
	}
	for i := range d.Options {
		if d.Options[i].Name == s.Name {
			return &d.Options[i]
		}
	}
	return nil
}

// Find is the setting of that name, or nil.
func Find(name string) *Setting {
	for i := range Settings {
		if Settings[i].Name == name {
			return &Settings[i]
		}
	}
	return nil
}

// Names lists the settings' names, of a disk alone where disk is true.
func Names(disk bool) []string {
	var names []string
	for i := range Settings {
		if !disk || Settings[i].Disk() {
			names = append(names, Settings[i].Name)
		}
	}
	return names
}

// Settings are all there are, in the order of help.
var Settings = []Setting{
	{Name: "create", Value: "SIZE", Help: "make the file, of SIZE bytes (K, M, G, T), where there is none; one that is there is used as it is, or refused if it is smaller: nothing is ever truncated",
		disk: func(d *Disk, v Text) error { return setSize(&d.Create, v, 1) }},
	{Name: "preallocation", Value: "MODE", Default: "off", Allowed: []string{"off", "falloc", "full"}, Help: "what --create does about the space: nothing, reserve it, or write it",
		disk: func(d *Disk, v Text) error { d.Preallocation = v.Value; return nil }},
	{Name: "create-options", Value: "NAME=VALUE,...", Help: "further options of the driver for --create, such as nocow=on or extent-size-hint=4M (platter drivers file)",
		disk: func(d *Disk, v Text) error { return setValues(&d.Creating, v) }},
	{Name: "format", Short: "f", Value: "FORMAT", Default: "raw, unless the disk begins like another format", Help: "the format of the disk",
		disk: func(d *Disk, v Text) error { d.Format = v.Value; return nil }},
	{Name: "read-only", Short: "r", Help: "open the disk for reading only", Default: "off",
		disk: func(d *Disk, v Text) error { return setBool(&d.ReadOnly, v) }},
	{Name: "cache", Value: "MODE", Default: "auto", Driver: true, Help: "how the host's page cache is used; auto means direct I/O where it works, otherwise writeback, and the reason is shown"},
	{Name: "aio", Value: "ENGINE", Default: "auto", Driver: true, Help: "how requests reach the kernel"},
	{Name: "locking", Value: "MODE", Default: "auto", Driver: true, Help: "lock the file against other programs"},
	{Name: "discard", Value: "MODE", Default: "unmap", Allowed: []string{"unmap", "ignore"}, Help: "whether discard and trim give space back",
		disk: func(d *Disk, v Text) error { d.IgnoreDiscard = v.Value == "ignore"; return nil }},
	{Name: "throttle", Value: "NAME=NUMBER,...", Help: "limit the disk: iops-total, iops-read, iops-write in requests a second, bps-total, bps-read, bps-write in bytes (K, M, G) a second, each with -max and -max-length for bursts; group=NAME shares the limits among disks (docs/throttle.md)",
		disk: func(d *Disk, v Text) error { return setValues(&d.Throttle, v) }},
	{Name: "export", Value: "name=NAME,...", Many: true, Default: "the disk's name",
		Help: "offer the disk under this name, with description=TEXT and read-only=on where wanted, commas in them doubled; the first export is found without a name too; repeated: further ones of the only disk, or one for each disk in order", disk: func(*Disk, Text) error { return nil }},
	{Name: "vhost-user", Value: "PATH,...", Many: true,
		Help: "offer the disk to virtual machines on the Unix socket PATH, with queues=N, size=N, packed=off, in-order=on, block-size=4096, serial=TEXT, poll=TIME or off, mode=OCTAL or connect=on where wanted (docs/vhost-user.md); without --listen there is no NBD then; repeated: further ones of the only disk, or one for each disk in order", disk: func(*Disk, Text) error { return nil }},

	{Name: "listen", Short: "l", Value: "ADDRESS", Many: true, Default: "auto", Help: "unix:PATH, HOST:PORT, [::1]:PORT, systemd, systemd:NAME, fd:NUMBER, or auto: a private Unix socket",
		daemon: func(c *Config, v Text) error { return c.addListen(v) }},
	{Name: "socket-mode", Value: "OCTAL", Default: "0600", Help: "the permissions of the Unix sockets that are made: who may connect; 0660 lets the group in",
		daemon: func(c *Config, v Text) error { return setMode(&c.SocketMode, v) }},
	{Name: "tls", Value: "MODE", Restart: true, Allowed: tlsModes, Default: "off, or required where tls-cert is given", Help: "whether clients may, must or cannot encrypt",
		daemon: func(c *Config, v Text) error { return setIndex(&c.TLS.Mode, v, tlsModes) }},
	{Name: "tls-cert", Value: "FILE", Help: "the server's certificate with its chain (PEM); read again on SIGHUP",
		daemon: func(c *Config, v Text) error { return setString(&c.TLS.Cert, v) }},
	{Name: "tls-key", Value: "FILE", Help: "the certificate's key (PEM)",
		daemon: func(c *Config, v Text) error { return setString(&c.TLS.Key, v) }},
	{Name: "tls-ca", Value: "FILE", Help: "the authorities that clients' certificates are checked against (PEM)",
		daemon: func(c *Config, v Text) error { return setString(&c.TLS.CA, v) }},
	{Name: "tls-verify-client", Default: "off", Help: "accept only clients with a certificate of one of those authorities",
		daemon: func(c *Config, v Text) error { return setBool(&c.TLS.VerifyClient, v) }},
	{Name: "max-connections", Value: "N", Restart: true, Default: "100", Help: "serve this many clients at once; more wait",
		daemon: func(c *Config, v Text) error { return setInt(&c.MaxConnections, v, 1, MaxConns) }},
	{Name: "handshake-timeout", Value: "DURATION", Restart: true, Default: "10s", Help: "drop clients that have not chosen an export in this time (10s, 1m)",
		daemon: func(c *Config, v Text) error { return setDuration(&c.HandshakeTimeout, v) }},
	{Name: "buffer-memory", Value: "SIZE", Restart: true, Default: "64M", Help: "the most memory for bounce and padding buffers",
		daemon: func(c *Config, v Text) error { return setSize(&c.BufferMemory, v, 1<<20) }},
	{Name: "connection-memory", Value: "SIZE", Restart: true, Default: "128M", Help: "the most memory for what clients send and are sent",
		daemon: func(c *Config, v Text) error { return setSize(&c.ConnectionMemory, v, 4<<20) }},
	{Name: "http", Value: "ADDRESS", Restart: true, Help: "answer HTTP there: a page for people, an API, metrics (docs/http.md); unix:PATH, HOST:PORT, or auto: a private Unix socket; beyond this machine only with http-token",
		daemon: func(c *Config, v Text) error { return c.setHTTP(v) }},
	{Name: "http-token", Value: "FILE", Restart: true, Help: "let in over HTTP only who shows the token in this file",
		daemon: func(c *Config, v Text) error { return setString(&c.HTTPToken, v) }},
	{Name: "once", Restart: true, Default: "off", Help: "exit when the last client has left, once there was one",
		daemon: func(c *Config, v Text) error { return setBool(&c.Once, v) }},
	{Name: "pid-file", Value: "FILE", Restart: true, Help: "write the process id to FILE and keep it locked",
		daemon: func(c *Config, v Text) error { return setString(&c.PIDFile, v) }},
	{Name: "stats", Default: "off", Help: "print counters and latencies on exit; SIGUSR1 prints them at any time",
		daemon: func(c *Config, v Text) error { return setBool(&c.Stats, v) }},
	{Name: "log-format", Value: "FORMAT", Default: "text", Restart: true, Allowed: []string{"text", "json"}, Help: "how messages are written to standard error",
		daemon: func(c *Config, v Text) error { return setString(&c.LogFormat, v) }},
	{Name: "log-level", Value: "LEVEL", Default: "info", Allowed: []string{"debug", "info", "warn", "error"}, Help: "which messages are written",
		daemon: func(c *Config, v Text) error {
			if err := c.LogLevel.UnmarshalText([]byte(v.Value)); err != nil {
				return errorAt(v.At, "log-level: %v", err)
			}
			return nil
		}},
}

// Check says what is wrong with a value by itself, if anything.
func (s *Setting) Check(v Text) error {
	if err := s.checked(v); err != nil {
		return err
	}
	switch {
	case s.Name == "export":
		_, err := parseExport(v)
		return err
	case s.Name == "vhost-user":
		_, err := parseVhostUser(v)
		return err
	case s.daemon != nil:
		return s.daemon(&Config{}, v)
	case s.disk != nil:
		return s.disk(&Disk{}, v)
	}
	return nil
}

// checked holds a value against the list of those allowed.
func (s *Setting) checked(v Text) error {
	allowed := s.Values()
	if len(allowed) == 0 || s.Bool() {
		return nil
	}
	for _, a := range allowed {
		if a == v.Value {
			return nil
		}
	}
	return errorAt(v.At, "%s%q is not possible: %s", s.prefix(v.At), v.Value, oneOf(v.Value, allowed))
}

// prefix names the setting, where its place does not.
func (s *Setting) prefix(at Place) string {
	if at.Flag == s.Name {
		return ""
	}
	return s.Name + " "
}

// applyDisk takes the setting for a disk: its own values, or the general ones.
func (s *Setting) applyDisk(d *Disk, general, own []Text) error {
	vals := own
	if len(vals) == 0 {
		vals = general
	}
	for _, v := range vals {
		if err := s.checked(v); err != nil {
			return err
		}
		switch {
		case !s.Driver:
			if err := s.disk(d, v); err != nil {
				return err
			}
		case len(own) > 0:
			d.Options[s.Name] = v.Value
		default:
			d.Defaults[s.Name] = v.Value
		}
	}
	return nil
}

func setString(to *string, v Text) error {
	if v.Value == "" {
		return errorAt(v.At, "the value is empty")
	}
	*to = v.Value
	return nil
}

// parseBool reads on and off, and the words that YAML and other programs use.
func parseBool(s string) (on, ok bool) {
	switch strings.ToLower(s) {
	case "on", "true", "yes":
		return true, true
	case "off", "false", "no":
		return false, true
	}
	return false, false
}

func setBool(to *bool, v Text) error {
	on, ok := parseBool(v.Value)
	if !ok {
		return errorAt(v.At, "%q is neither on nor off", v.Value)
	}
	*to = on
	return nil
}

func setValues(to *block.Values, v Text) error {
	vals, err := block.ParseOptions(v.Value)
	if err != nil {
		return &Error{At: v.At, Msg: err.Error(), Err: err}
	}
	*to = vals
	return nil
}

func setInt(to *int, v Text, least, most int) error {
	n, err := strconv.Atoi(v.Value)
	if err != nil || n < least || n > most {
		return errorAt(v.At, "%q is not a whole number from %d to %d", v.Value, least, most)
	}
	*to = n
	return nil
}

func setSize(to *int64, v Text, least int64) error {
	n, err := block.ParseSize(v.Value)
	if err != nil {
		return &Error{At: v.At, Msg: err.Error(), Err: err}
	}
	if n < least {
		return errorAt(v.At, "%q is too small: at least %s", v.Value, sizeText(least))
	}
	*to = n
	return nil
}

func sizeText(n int64) string {
	if n == 1 {
		return "1 byte"
	}
	return block.FormatSize(n)
}

func setDuration(to *time.Duration, v Text) error {
	s := v.Value
	if _, err := strconv.ParseUint(s, 10, 32); err == nil {
		s += "s"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > 24*time.Hour {
		return errorAt(v.At, "%q is not a duration: write 500ms, 10s or 5m, up to 24h", v.Value)
	}
	*to = d
	return nil
}

func setMode(to *fs.FileMode, v Text) error {
	n, err := strconv.ParseUint(v.Value, 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		return errorAt(v.At, "%q is not a file mode: write 0600, 0660 or 0666", v.Value)
	}
	*to = fs.FileMode(n)
	return nil
}

// setIndex takes the place of v in a list that it was checked against.
func setIndex(to *TLSMode, v Text, list []string) error {
	for i, s := range list {
		if s == v.Value {
			*to = TLSMode(i)
			return nil
		}
	}
	return errorAt(v.At, "%q is not possible: %s", v.Value, oneOf(v.Value, list))
}
