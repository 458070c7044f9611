package promises

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// session is a value that the program uses, under its own lock, while it is cached.
type session struct {
	mu   sync.Mutex
	seen map[string]string
	Tags map[string]string `json:"-"`
}

func (s *session) touch(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[fmt.Sprint(i%100)] = "x"
	s.Tags[fmt.Sprint(i%100)] = "x"
}

// Values that their own methods change are cached, with and without Redis. The library does not
// read what their lock guards.
func TestValuesInUse(t *testing.T) {
	_, b := embedded(t)
	for name, o := range map[string]cacheaside.Options{"local": {}, "Redis": patient} {
		t.Run(name, func(t *testing.T) {
			var client redis.UniversalClient
			if name == "Redis" {
				client = b.client(t)
			}
			c, err := newCache(client, &o)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			of := &session{seen: map[string]string{}, Tags: map[string]string{}}
			l, err := cacheaside.NewLoader(c, "session", func(context.Context, int) (*session,
				error) {
				return of, nil
			}, &cacheaside.LoaderOptions{AllowLoss: true})
			if err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						of.touch(i)
					}
				}
			})
			for key := range 200 {
				if v, err := l.Get(t.Context(), key); v != of || err != nil {
					t.Fatal(v == of, err)
				}
			}
			close(stop)
			wg.Wait()
			if s := l.Stats(); s.LoadErrors != 0 || s.TooHeavy != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// LoaderOptions.Weight determines the weight of a value. A value with an invalid weight is not
// stored in memory, and is counted.
func TestWeight(t *testing.T) {
	c, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	load := func(_ context.Context, key int) (string, error) {
		if key == 5 {
			return "", cacheaside.ErrNotFound
		}
		return fmt.Sprint(key), nil
	}
	l, err := cacheaside.NewLoader(c, "weighed", load,
		&cacheaside.LoaderOptions{Weight: cacheaside.WeightOf(func(v string) int64 {
			switch v {
			case "1":
				return 1 << 20
			case "2":
				panic("2")
			case "3":
				return -1
			case "":
				panic("an absence is weighed")
			}
			return int64(len(v))
		})})
	if err != nil {
		t.Fatal(err)
	}
	for key := range 6 {
		for range 2 {
			if v, err := l.Get(t.Context(), key); v != fmt.Sprint(key) && key != 5 || err != nil && key != 5 {
				t.Error(key, v, err)
			}
		}
	}
	if err := l.Expire(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if s := l.Stats(); s.TooHeavy != 6 || s.MemoryHits != 3 || s.Loads != 9 || s.LoadErrors != 0 {
		t.Errorf("%+v", s)
	}
	_, err = cacheaside.NewLoader(c, "other", load,
		&cacheaside.LoaderOptions{Weight: cacheaside.WeightOf(func(int) int64 { return 0 })})
	if err == nil || !strings.Contains(err.Error(),
		"LoaderOptions.Weight: the function given to WeightOf is a func(int) int64, and this loader needs a "+
			"func(string) int64") {
		t.Error(err)
	}
}

// sealed encodes itself. Its contents cannot be weighed because it has a lock.
type sealed struct {
	_    sync.Mutex
	text *string
}

func (s *sealed) MarshalText() ([]byte, error) { return []byte(*s.text), nil }
func (s *sealed) UnmarshalText(b []byte) error { text := string(b); s.text = &text; return nil }

// A value that cannot be inspected weighs as much as its encoding: after a load, after a read from
// Redis, and while Redis is unreachable.
func TestWeightOfTheEncoding(t *testing.T) {
	server, b := embedded(t)
	load := func(_ context.Context, key int) (*sealed, error) {
		text := strings.Repeat("x", []int{100, 40 << 10}[key])
		return &sealed{text: &text}, nil
	}
	for _, o := range []*cacheaside.LoaderOptions{{}, {CompressAbove: 10, Version: "2"}} {
		var all []*cacheaside.Loader[int, *sealed]
		for range 2 {
			own := patient
			own.MemoryBytes = 1 << 20
			c, err := cacheaside.New(b.client(t), &own)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			l, err := cacheaside.NewLoader(c, "sealed", load, o)
			if err != nil {
				t.Fatal(err)
			}
			hear(t, l)
			for key := range 2 {
				if _, err := l.Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			if s := l.Stats(); s.TooHeavy != 1 {
				t.Errorf("%+v", s)
			}
			if l.Get(t.Context(), 0); l.Stats().MemoryHits != 1 {
				t.Errorf("%+v", l.Stats())
			}
			all = append(all, l)
		}
		if s := all[1].Stats(); s.Loads != 0 {
			t.Errorf("%+v", s)
		}
	}
	c, err := cacheaside.New(b.client(t), &cacheaside.Options{MemoryBytes: 1 << 20, MaxStaleness: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "sealed", load, &cacheaside.LoaderOptions{Version: "3"})
	if err != nil {
		t.Fatal(err)
	}
	hear(t, l)
	server.SetError("LOADING Redis is loading the dataset in memory")
	testenv.Eventually(t, "Redis is out of reach", func() bool {
		for key := range 2 {
			if _, err := l.Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		s := l.Stats()
		return s.TooHeavy > 0 && s.HitsWhileDown > 0
	})
}
