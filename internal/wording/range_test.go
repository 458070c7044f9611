package wording

import (
	"strings"
	"testing"
	"time"
)

func TestRange(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Second - 1: "Options.TTL 999.999999ms: from 1s to 1 minute",
		time.Second:     "",
		time.Minute:     "",
		time.Minute + 1: "Options.TTL 1m0.000000001s: from 1s to 1 minute",
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

// TestDurationsInWords: limits in errors read as a person says them.
func TestDurationsInWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		10 * 365 * 24 * time.Hour: "10 years", 24 * time.Hour: "1 day", 48 * time.Hour: "2 days", time.Hour: "1 hour",
		90 * time.Minute: "90 minutes",
		time.Minute:      "1 minute", 90 * time.Second: "1m30s", time.Second: "1s", 0: "0s", -time.Hour: "-1h0m0s",
	} {
		if got := inWords(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	years := 10 * 365 * 24 * time.Hour
	if err := Range("Options.X", years+1, 10*time.Millisecond, years); !strings.HasSuffix(err.Error(),
		"from 10ms to 10 years") {
		t.Error(err)
	}
}
