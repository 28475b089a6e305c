package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// maxAnswer bounds what a client takes, in bytes.
const maxAnswer = 64 << 20

// Client asks a daemon.
type Client struct {
	base, address, token string
	http                 *http.Client
}

// NewClient makes a client of the daemon at address: unix:PATH, http://HOST:PORT
// or HOST:PORT. It connects when it asks.
func NewClient(address, token string) (*Client, error) {
	c := &Client{address: address, token: token, http: &http.Client{Timeout: maxPatience + 10*time.Second}}
	if path, unix := strings.CutPrefix(address, "unix:"); unix {
		c.base = "http://platter"
		c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}}
		return c, nil
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is not the address of a daemon: write unix:PATH or http://HOST:PORT, as platter serve --http prints it", c.address)
	}
	c.base = strings.TrimSuffix(u.Scheme+"://"+u.Host, "/")
	return c, nil
}

// Ask sends body, nil for none, and decodes the answer into to.
func (c *Client) Ask(ctx context.Context, method, path string, body, to any) error {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(b)
	}
	q, err := http.NewRequestWithContext(ctx, method, c.base+path, in)
	if err != nil {
		return err
	}
	if c.token != "" {
		q.Header.Set("Authorization", "Bearer "+c.token)
	}
	a, err := c.http.Do(q)
	if err != nil {
		return c.whyNot(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer))
	if err != nil {
		return err
	}
	if a.StatusCode >= 300 {
		var e ErrorBody
		if json.Unmarshal(text, &e) == nil && e.Error != nil {
			return e.Error
		}
		return fmt.Errorf("%s: answered with %s: it is no daemon of this kind", c.address, a.Status)
	}
	return json.Unmarshal(text, to)
}

// whyNot says what to do about a daemon that cannot be reached.
func (c *Client) whyNot(err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: nobody answers there: start the daemon with platter serve --http %s", c.address, c.address)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s: permission denied: the socket belongs to another user", c.address)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("%s: %w", c.address, err)
}
