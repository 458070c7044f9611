package limitedlog

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestAlarm: a lasting failure is reported once, and its end is reported too.
func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := Alarm{After: time.Minute}
		broken := errors.New("broken")
		fails := func(step string, times int, want bool) {
			t.Helper()
			if f, tell := a.Failed(step, broken); tell != want || f.Times != times || f.Err != broken ||
				f.Last.Sub(f.Since) > time.Hour {
				t.Errorf("%s: %v, %+v", step, tell, f)
			}
		}
		works := func(step string, times int, want bool) {
			t.Helper()
			if f, over := a.Works(step); over != want || f.Times != times {
				t.Errorf("%s: %v, %+v", step, over, f)
			}
		}
		fails("a", 1, false)
		time.Sleep(time.Minute - 1)
		fails("a", 2, false)
		fails("b", 1, false)
		if a.Sounds() {
			t.Error("it sounds")
		}
		time.Sleep(time.Nanosecond)
		fails("a", 3, true)
		fails("a", 4, false)
		if step, f := a.Longest(); step != "a" || f.Times != 4 || !a.Sounds() {
			t.Errorf("%s %+v", step, f)
		}
		works("b", 1, false)
		works("a", 4, true)
		works("a", 0, false)
		fails("a", 1, false) // it begins anew
		time.Sleep(time.Minute)
		fails("a", 2, true)
		a.Forget(0)
		if step, _ := a.Longest(); step != "" || a.Sounds() {
			t.Errorf("it has not forgotten %q", step)
		}
		works("a", 0, false)
	})
}

// Several failures at the same time are reported once, until all of them have ended.
func TestAlarmTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := Alarm{Together: true, Most: 100}
		told := 0
		fails := func(n int) {
			if _, tell := a.Failed(fmt.Sprint(n), nil); tell {
				told++
			}
		}
		over := func(n int) bool {
			_, over := a.Works(fmt.Sprint(n))
			return over
		}
		for n := range 10 * a.Most {
			fails(n)
		}
		if told != 1 || len(a.failing) != a.Most || !a.Sounds() {
			t.Errorf("alerted %d times, of %d", told, len(a.failing))
		}
		for n := range 10 * a.Most {
			if over(n) != (n == a.Most-1) {
				t.Errorf("%d: over, or not", n)
			}
		}
		fails(1)
		time.Sleep(time.Second)
		fails(2)
		a.Forget(time.Second)
		if told != 2 || over(1) || !a.Sounds() || !over(2) || a.Sounds() {
			t.Errorf("alerted %d times, or it does not end", told)
		}
		fails(3)
		time.Sleep(time.Second)
		a.Forget(time.Second)
		if fails(4); told != 4 {
			t.Errorf("alerted %d times", told)
		}
	})
}

// A Notifier waits for the functions that it calls, and survives their panics.
func TestTeller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notifier Notifier[int]
		notifier.Notify(1) // without a function
		told, panicked := make(chan int, 3), make(chan any, 3)
		notifier.To = func(n int) {
			time.Sleep(time.Second)
			if told <- n; n == 2 {
				panic("boom")
			}
		}
		notifier.Panicked = func(p any) { panicked <- p }
		for n := range 3 {
			notifier.Notify(n)
		}
		if len(told) != 0 {
			t.Error("Notify waits")
		}
		notifier.Wait()
		if len(told) != 3 || len(panicked) != 1 || <-panicked != "boom" {
			t.Errorf("%d alerted, %d panicked", len(told), len(panicked))
		}
	})
}
