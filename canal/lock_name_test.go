package canal

import (
	"context"
	"log/slog"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// readsLog is a Source of an empty log.
type readsLog struct {
	log       string
	exclusive bool
}

func (r readsLog) Identity() (string, bool) { return r.log, r.exclusive }

func (r readsLog) Run(ctx context.Context, _ event.Need, deliver chan<- event.Batch) error {
	select {
	case deliver <- event.Batch{Position: "1"}:
	case <-ctx.Done():
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestConsumersOfTwoApplications: Consumers of two applications, with all defaults and one lock
// service, do not wait for each other. Those of one application do.
func TestConsumersOfTwoApplications(t *testing.T) {
	_, rdb := testenv.Mini(t)
	type program struct {
		prefix, loader string
		source         Source
	}
	plain := struct{ Source }{readsLog{}}
	consumer := func(p program) *Consumer {
		cache, err := cacheaside.New(rdb, &cacheaside.Options{Prefix: p.prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cache.Close() })
		l, err := cacheaside.NewLoader(cache, p.loader,
			func(context.Context, int64) (string, error) { return "", nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		locker, err := lock.NewRedis(rdb, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { locker.Close() })
		c, err := NewConsumer(cache, p.source, nil, []Binding{Bind(l, "shop", p.loader+"s", IntColumn[int64]("id"))},
			&Options{Locker: locker, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, test := range map[string]struct {
		a, b program
		same bool
	}{
		"one program":                     {program{"shop", "user", readsLog{"db/shop/slot", true}}, program{"shop", "user", readsLog{"db/shop/slot", true}}, true},
		"two releases of one program":     {program{"shop", "user", readsLog{"db/shop/slot", true}}, program{"shop", "order", readsLog{"db/shop/slot", true}}, true},
		"one program on a broker":         {program{"", "user", plain}, program{"", "user", plain}, true},
		"two prefixes":                    {program{"shop", "user", readsLog{"db/shop/slot", true}}, program{"blog", "user", readsLog{"db/shop/slot", true}}, false},
		"two databases, all defaults":     {program{"", "user", readsLog{"db/shop/slot", true}}, program{"", "user", readsLog{"db/blog/slot", true}}, false},
		"two loaders, all defaults":       {program{"", "user", readsLog{"db", false}}, program{"", "post", readsLog{"db", false}}, false},
		"two loaders on brokers":          {program{"", "user", plain}, program{"", "post", plain}, false},
		"two servers with the same names": {program{"", "user", readsLog{"one", false}}, program{"", "user", readsLog{"two", false}}, false},
	} {
		a, b := consumer(test.a), consumer(test.b)
		if same := a.options.Name == b.options.Name; same != test.same {
			t.Errorf("%s: the locks are %q and %q", name, a.options.Name, b.options.Name)
		}
	}
	first, second := consumer(program{"", "user", readsLog{"db/shop/slot", true}}), consumer(program{"", "post",
		readsLog{"db/blog/slot", true}})
	for _, c := range []*Consumer{first, second} {
		go func() { _ = c.Run(t.Context()) }()
	}
	testenv.Eventually(t, "both applications consume",
		func() bool { return first.Stats().Active && second.Stats().Active })
}
