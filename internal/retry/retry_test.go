package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Sleep(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := Sleep(t.Context(), 0); err != nil {
			t.Error(err)
		}
		reason := errors.New("why")
		ctx, end := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { end(reason) })
		began = time.Now()
		if err := Sleep(ctx, time.Minute); err != reason || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		for range 100 {
			if err := Sleep(ctx, 0); err != reason {
				t.Fatal("the context has ended, and Sleep returns no error")
			}
		}
	})
}

func TestDelay(t *testing.T) {
	for n := 1; n < 1000; n++ {
		want := time.Hour
		if n < 30 {
			want = min(want, time.Millisecond<<(n-1))
		}
		for range 20 {
			if d := Delay(n, time.Millisecond, time.Hour); d < want/2 || d > want {
				t.Fatalf("after %d failures %v, want up to %v", n, d, want)
			}
		}
	}
	if d := Delay(1, time.Hour, time.Second); d > time.Second {
		t.Error(d)
	}
}
