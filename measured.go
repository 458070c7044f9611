package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/channel"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/measure"
)

// measured is a Cache as package meter has it.
type measured struct{ *Cache }

// measuring is what a Cache with Redis gives to package meter.
type measuring = measure.Inside

// sampler is one, behind a pointer that can be swapped.
type sampler struct{ measure.Sampler }

func (m measured) Sample(s measure.Sampler) (stop func(), err error) {
	own := &sampler{s}
	switch {
	case m.isClosed():
		return nil, ErrClosed
	case !m.sampler.CompareAndSwap(nil, own):
		return nil, errors.New("the cache has a meter already")
	}
	m.channel.Listen() // what this process has in memory is asked for, too
	return func() { m.sampler.CompareAndSwap(own, nil) }, nil
}

// wrote tells the sampler of an invalidation that was acknowledged.
func (c *Cache) wrote(w func() measure.Written) {
	if s := c.sampler.Load(); s != nil && s.Take() {
		s.Add(w())
	}
}

func (m measured) Read(loader, version, text string) measure.Written {
	k := Key{Loader: loader, Version: version, Text: text}
	return m.written(k, keys.NewNamespace("", loader, "").Hash(text))
}

func (c *Cache) written(k Key, hash uint64) measure.Written {
	w := measure.Written{Loader: k.Loader, Hash: hash}
	if l := c.known(k.Loader); l != nil {
		if key, ok := l.KeyOf(cmp.Or(k.Version, "1"), k.Text); ok {
			w.Key = key
		}
	}
	return w
}

// answersLive is how long answers stay in Redis after they should have been fetched.
const answersLive = 10 * time.Second

func (m measured) Ask(ctx context.Context, q measure.Question) (listeners int, err error) {
	asked := make([]channel.Asked, len(q.Keys))
	for i, k := range q.Keys {
		asked[i] = channel.Asked(k)
	}
	return m.channel.Ask(ctx, channel.Question{ID: q.ID, Patience: q.Patience, Keys: asked}, answersLive)
}

func (m measured) Answers(ctx context.Context, id uint64) ([]string, error) {
	return m.channel.Answers(ctx, id)
}

func (m measured) Redis(ctx context.Context, w measure.Written, good measure.Stamp, mayLoad func() bool) (measure.Verdict, measure.Stamp) {
	l := m.known(w.Loader)
	if l == nil || w.Key == nil {
		return measure.Unknown, measure.Stamp{}
	}
	return l.AuditRedis(ctx, w.Key, good, mayLoad)
}
