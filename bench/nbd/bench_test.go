package main

import (
	"strings"
	"testing"
	"time"
)

func TestFioReport(t *testing.T) {
	l, err := parseFio([]byte("fio: connected\n{\"jobs\":[{\"error\":0,\"read\":{\"total_ios\":500,\"runtime\":250}}]}\n"))
	if err != nil || l.ops != 500 || l.took != 250*time.Millisecond {
		t.Errorf("%d in %v, %v; want 500 in 250ms", l.ops, l.took, err)
	}
	for _, bad := range []string{"", "{}", `{"jobs":[{"error":5,"read":{"total_ios":1,"runtime":1}}]}`} {
		if _, err := parseFio([]byte(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestChoose(t *testing.T) {
	got, err := choose("row", rows, func(r row) string { return r.name }, []string{"copy", "r4k-d1"})
	if err != nil || len(got) != 2 || got[0].name != "r4k-d1" {
		t.Errorf("got %+v, %v; want the two rows in the table's order", got, err)
	}
	if _, err := choose("row", rows, func(r row) string { return r.name }, []string{"nothing"}); err == nil || !strings.Contains(err.Error(), "r4k-4x16") {
		t.Errorf("error %v, want one that lists the rows", err)
	}
}
