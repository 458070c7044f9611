package noanswer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestFor(t *testing.T) {
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	soonOver, cancel := context.WithTimeout(t.Context(), soon/2)
	defer cancel()
	later, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	left, cancel := context.WithCancel(t.Context())
	cancel()
	dial := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	read := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	reply := errors.New("ERR a reply")
	for name, c := range map[string]struct {
		ctx         context.Context
		err, reason error
		is, not     error // what it is, and is not
		says        string
	}{
		"our time-out":            {t.Context(), context.DeadlineExceeded, nil, nil, context.DeadlineExceeded, "no answer from S to GET within "},
		"with time left":          {later, context.DeadlineExceeded, nil, nil, context.DeadlineExceeded, "timed out"},
		"the connection's":        {t.Context(), read, nil, os.ErrDeadlineExceeded, context.DeadlineExceeded, "no answer from S"},
		"refused":                 {t.Context(), dial, nil, syscall.ECONNREFUSED, context.DeadlineExceeded, "connection refused"},
		"refused before":          {t.Context(), context.DeadlineExceeded, dial, syscall.ECONNREFUSED, context.DeadlineExceeded, "connection refused"},
		"joined with another's":   {t.Context(), fmt.Errorf("%w: %w", &Error{Err: read}, context.DeadlineExceeded), nil, os.ErrDeadlineExceeded, context.DeadlineExceeded, "no answer"},
		"the caller's":            {over, context.DeadlineExceeded, nil, context.DeadlineExceeded, nil, ""},
		"the caller's, at a read": {over, read, nil, context.DeadlineExceeded, nil, "no answer from S"},
		"the caller's, soon":      {soonOver, read, nil, context.DeadlineExceeded, nil, "no answer from S"},
		"the caller's, told":      {over, &Error{Server: "S", Err: read}, nil, context.DeadlineExceeded, nil, "no answer from S"},
		"the caller has left":     {left, read, nil, context.Canceled, context.DeadlineExceeded, "no answer from S"},
		"somebody has left":       {t.Context(), context.Canceled, nil, context.Canceled, context.DeadlineExceeded, "context canceled"},
		"a reply":                 {over, reply, nil, reply, context.DeadlineExceeded, "ERR a reply"},
	} {
		err := Wrap(c.ctx, c.err, "S", "GET", time.Now(), c.reason)
		if c.is != nil && !errors.Is(err, c.is) || c.not != nil && errors.Is(err, c.not) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want one that is %v, not %v, and says %q", name, err, c.is, c.not, c.says)
		}
	}
	if Wrap(over, nil, "S", "GET", time.Now(), nil) != nil {
		t.Error("an error of nothing")
	}
}

// A failed connection does not prove that this request was not sent: errors.As finds only the
// driver's error.
func TestCauseIsNotTheError(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	err := Wrap(t.Context(), context.DeadlineExceeded, "S", "GET", time.Now(), dial)
	if op, ok := errors.AsType[*net.OpError](err); ok {
		t.Errorf("it is taken for %v", op)
	}
	if _, ok := errors.AsType[*net.OpError](Wrap(t.Context(), dial, "S", "GET", time.Now(), nil)); !ok {
		t.Error("its own dial is not found")
	}
	if e, ok := errors.AsType[*Error](err); !ok || !e.Timeout() {
		t.Errorf("%v is no time-out", err)
	}
}
