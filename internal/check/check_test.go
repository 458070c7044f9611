package check

import (
	"testing"
	"time"
)

func TestRange(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Second - 1: "Options.TTL 999.999999ms: from 1s to 1m0s",
		time.Second:     "",
		time.Minute:     "",
		time.Minute + 1: "Options.TTL 1m0.000000001s: from 1s to 1m0s",
	} {
		got := ""
		if err := Range("Options.TTL", d, time.Second, time.Minute); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
