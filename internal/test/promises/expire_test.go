package promises

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// An expired value is served while it is reloaded, and for as long as reloads fail.
func TestExpire(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for _, o := range []cacheaside.Options{patient, noMemory} {
			d := newTable(map[int]string{1: "a", 2: "x"})
			lo := &cacheaside.LoaderOptions{EarlyRefresh: -1, ErrorTTL: 100 * time.Millisecond}
			p, q := start(t, b, d, o, lo), start(t, b, d, o, lo)
			if err := p.Invalidate(t.Context(), 1, 2, 3); err != nil {
				t.Fatal(err)
			}
			for _, of := range []process{p, q} {
				of.want(t, 1, "a", nil)
				of.want(t, 2, "x", nil)
				of.want(t, 3, "", cacheaside.ErrNotFound)
				of.settle()
			}
			d.fail(errBroken)
			d.write(1, "b")
			d.write(3, "c")
			if err := p.Expire(t.Context(), 1, 3); err != nil {
				t.Fatal(err)
			}
			for _, of := range []process{p, q} {
				if v, err := of.Get(t.Context(), 1, cacheaside.Fresh); v != "a" || err != nil {
					t.Errorf("while loads fail: %q, %v", v, err)
				}
			}
			p.want(t, 1, "a", nil) // its own memory is updated immediately
			if s := p.Stats(); s.Stale == 0 {
				t.Errorf("%+v", s)
			}
			d.fail(nil)
			for _, of := range []process{p, q} {
				waitFor(t, func() bool { v, _ := of.Get(t.Context(), 1); return v == "b" })
				waitFor(t, func() bool { v, _ := of.Get(t.Context(), 3); return v == "c" })
				of.want(t, 2, "x", nil)
			}
		}
	})
}

// An expiry during a load is not lost: the result of the load is not fresh.
func TestExpireDuringALoad(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for what, under := range map[string]func(process) (string, error){
			"a miss":    func(p process) (string, error) { return p.Get(context.Background(), 1) },
			"a refresh": func(p process) (string, error) { return p.Refresh(context.Background(), 1) },
			"a renewal": func(p process) (string, error) {
				if err := p.Expire(context.Background(), 1); err != nil {
					return "", err
				}
				_, err := p.Get(context.Background(), 1)
				return "new", err
			},
		} {
			d := newTable(map[int]string{1: "old"})
			lo := &cacheaside.LoaderOptions{EarlyRefresh: -1}
			p, q := start(t, b, d, patient, lo), start(t, b, d, patient, lo)
			if err := q.Invalidate(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			load := int64(1)
			if what != "a miss" {
				p.want(t, 1, "old", nil)
				load = 2
			}
			reached, resume := d.pause(load)
			got := later(func() (string, error) { return under(p) })
			reach(t, reached, what)
			d.write(1, "new")
			if err := q.Expire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			resume()
			if v, err := got(t); v != "new" || err != nil {
				t.Errorf("%s: %q, %v", what, v, err)
			}
			for _, of := range []process{p, q} {
				waitFor(t, func() bool { v, _ := of.Get(t.Context(), 1); return v == "new" })
			}
			if s := p.Stats(); s.Refused != 1 {
				t.Errorf("%s: %+v", what, s)
			}
		}
	})
}

func TestExpireWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTable(map[int]string{1: "a"})
		p := startOn(t, nil, d, cacheaside.Options{}, &lives)
		defer p.cache.Close()
		p.want(t, 1, "a", nil)
		p.settle()
		reached, resume := d.pause(2)
		if err := p.Expire(t.Context(), 1, 7); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "a", nil)
		<-reached // it has read the row; then the row changes
		d.write(1, "b")
		if err := p.Expire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		resume()
		synctest.Wait()
		p.settle()
		p.want(t, 1, "b", nil)
		p.settle()
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := p.Expire(t.Context(), 1); err != nil { // revives nothing
			t.Fatal(err)
		}
		d.fail(errBroken)
		if v, err := p.Get(t.Context(), 1); !errors.Is(err, errBroken) {
			t.Errorf("%q, %v", v, err)
		}
	})
}

// Without StaleFor, Expire leaves nothing to serve.
func TestExpireWithoutStale(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "a"})
	p := start(t, b, d, patient, &cacheaside.LoaderOptions{StaleFor: -1})
	p.want(t, 1, "a", nil)
	d.write(1, "b")
	if err := p.Expire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "b", nil)
}

// Redis is full: entries that cannot be marked as stale are deleted.
func TestExpireInAFullRedis(t *testing.T) {
	server := testenv.StartRedis(t, "--maxmemory-policy", "noeviction")
	admin := server.Client(t)
	d := newTable(map[int]string{1: "a"})
	p := startOn(t, server.Client(t), d, noMemory, nil)
	p.want(t, 1, "a", nil)
	if err := admin.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	d.write(1, "b")
	if err := p.Expire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "b", nil)
}
