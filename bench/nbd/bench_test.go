package main

import (
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
