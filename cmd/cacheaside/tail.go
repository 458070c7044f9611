package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
)

var tailCommand = command{
	name: "tail", args: "",
	short: "show invalidations as they are announced",
	long: `Shows each announcement of an invalidation as processes receive it: the process that sent
it, its range and number, and the hashes of its keys as "get" and errors show them, or the
loader if all its keys or a group were invalidated. It also shows gaps in the numbers, and messages
that it cannot read. On a cluster it listens to all masters, and shows each announcement
once. SIGINT, SIGTERM, --for or --count end it. It writes nothing into Redis.`,
	example: "tail --for 1m",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		l := &tailing{tool: t}
		flags.DurationVar(&l.time, "for", 0, "end after this `TIME`. Default: never")
		flags.IntVar(&l.count, "count", 0, "end after this `NUMBER` of announcements. Default: never")
		return l.run
	},
}

// tailing is one run of the command.
type tailing struct {
	*tool
	time  time.Duration
	count int

	numbers [conn.Ranges]numbers
	seen    int
}

// happening is a line of the output.
type happening struct {
	Time     string    `json:"time"`
	Event    string    `json:"event"` // "announced", "question", "gap", "malformed", "listening" or "lost"
	Range    *int      `json:"range,omitempty"`
	Number   uint64    `json:"number,omitempty"`
	Previous uint64    `json:"previous,omitempty"`
	Late     bool      `json:"late,omitempty"` // it came after one with a greater number
	Origin   string    `json:"origin,omitempty"`
	Kind     string    `json:"kind,omitempty"` // "keys", "loader", "groups", "told" or "unknown"
	Hashes   []string  `json:"hashes,omitempty"`
	Loader   untrusted `json:"loader,omitempty"`
	Bytes    int       `json:"bytes,omitempty"`
	Text     string    `json:"text,omitempty"`
}

func (t *tailing) run(ctx context.Context, args []string) error {
	switch {
	case len(args) > 0:
		return usagef("tail: it has no arguments")
	case t.time < 0:
		return usagef("tail: --for %v: not negative", t.time)
	case t.count < 0:
		return usagef("tail: --count %d: not negative", t.count)
	}
	if t.time > 0 { // not a deadline, because go-redis would use it for its commands
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(t.time, cancel).Stop()
	}
	return t.onRedis(ctx, t.listen)
}

func (t *tailing) listen(ctx context.Context, rdb redis.UniversalClient) error {
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan received, 1024)
	e := &listeners{tool: t.tool, rdb: rdb, topic: invalidation.Topic(t.prefix, dbOf(rdb)), events: events}
	defer e.running.Wait()
	defer cancel() // runs first
	if err := e.begin(ctx); err != nil {
		return err
	}
	if !t.json {
		if err := t.line("TIME", "RANGE", "NUMBER", "ORIGIN", "WHAT"); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case h := <-events:
			if err := t.take(h); err != nil {
				return err
			}
			if t.count > 0 && t.seen >= t.count {
				return nil
			}
		}
	}
}

// dbOf returns the number of the database, which is part of the channel's name.
func dbOf(rdb redis.UniversalClient) int {
	if c, ok := rdb.(*redis.Client); ok {
		return c.Options().DB
	}
	return 0
}

func (t *tailing) take(h received) error {
	now := time.Now().UTC().Format(timeLayout)
	if h.payload == nil {
		return t.tell(happening{Time: now, Event: h.event, Text: h.text})
	}
	if q, err := invalidation.ReadQuestion(*h.payload); err == nil {
		t.seen++
		return t.tell(happening{Time: now, Event: "question", Bytes: len(*h.payload),
			Text: "a meter asks what memory has of " + count(len(q.Keys), "key")})
	}
	m, err := invalidation.Decode([]byte(*h.payload))
	if err != nil {
		t.seen++
		return t.tell(happening{Time: now, Event: "malformed", Bytes: len(*h.payload),
			Text: "a message that this version cannot read"})
	}
	fresh, gap, late := t.numbers[m.Range].take(m.Previous, m.Number)
	if !fresh { // received from another master
		return nil
	}
	if gap != 0 {
		err := t.tell(happening{Time: now, Event: "gap", Range: &m.Range, Number: m.Previous, Previous: gap,
			Text: fmt.Sprintf("announcements after %d, up to %d, did not arrive", gap, m.Previous)})
		if err != nil {
			return err
		}
	}
	t.seen++
	e := happening{Time: now, Event: "announced", Range: &m.Range, Number: m.Number, Previous: m.Previous, Late: late,
		Origin: fmt.Sprintf("%016x", m.Origin), Bytes: len(*h.payload)}
	for part := range m.Parts() {
		part.Each(func(hash uint64) { e.Hashes = append(e.Hashes, keyHash(hash)) })
	}
	switch m.Kind {
	case 'k', 'n':
		e.Kind = "keys"
	case 'l':
		e.Kind, e.Loader = "loader", untrusted(string(m.Body))
	case 'g':
		loader, set := m.Groups()
		e.Kind, e.Loader = "groups", untrusted(loader)
		for i := range set.Len() {
			e.Hashes = append(e.Hashes, groupHash(set.Hash(i)))
		}
	case 't':
		e.Kind, e.Text = "told", fmt.Sprintf("%d bytes for listeners", len(m.Body))
	default:
		e.Kind, e.Text = "unknown", "of a kind that this version does not know"
	}
	return t.tell(e)
}

// mostHashes is the maximum number of hashes of one announcement in a table. JSON has all of them.
const mostHashes = 8

func (t *tailing) tell(h happening) error {
	if t.json {
		return t.showJSON(h)
	}
	text := h.Event
	switch {
	case h.Event != "announced":
		text += ": " + h.Text
	case h.Kind == "keys":
		text = h.list("key")
	case h.Kind == "groups":
		text = h.list("group") + " of " + h.Loader.String()
	case h.Kind == "loader":
		text = "all keys of " + h.Loader.String()
	default:
		text = h.Kind + ": " + h.Text
	}
	if h.Late {
		text += " (late: it fills a gap)"
	}
	rng, number := "", ""
	if h.Range != nil {
		rng = fmt.Sprint(*h.Range)
	}
	if h.Number != 0 {
		number = fmt.Sprint(h.Number)
	}
	return t.line(h.Time, rng, number, h.Origin, text)
}

func (t *tailing) line(moment, rng, number, origin, text string) error {
	_, err := fmt.Fprintf(t.stdout, "%-24s  %5s  %-16s  %-16s  %s\n", moment, rng, number, origin, escape(text))
	return written(err)
}

// list returns the number and the first of the hashes of keys or groups.
func (h *happening) list(unit string) string {
	list := fmt.Sprintf("%s: %s", count(len(h.Hashes), unit), strings.Join(h.Hashes[:min(len(h.Hashes), mostHashes)],
		" "))
	if more := len(h.Hashes) - mostHashes; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}
