package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/lease"
)

var getCommand = command{
	name: "get", args: "LOADER KEY",
	short: "show what Redis holds under a key",
	long: `Shows what Redis holds under a key of a loader: a value, a cached null, the lease of a
load, the mark of a hold, the marker of a failed load, or nothing; and whether the key is
on hold. It shows the value only with --show-value, and changes nothing.
Exit code 3: Redis holds nothing under the key.`,
	example: "get --show-value user 42",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		g := &getting{tool: t}
		flags.StringVar(&g.version, "version", "1", "the `VERSION` of the loader (LoaderOptions.Version). Default: 1")
		flags.BoolVar(&g.showValue, "show-value", false, "show the value as well")
		flags.IntVar(&g.maxValue, "max-value", 64<<10,
			"the longest value to show, in `BYTES` after decompression, at most 64 MiB. Default: 65536")
		return g.run
	},
}

const mostValue = 64 << 20

// getting is one run of the command.
type getting struct {
	*tool
	version   string
	showValue bool
	maxValue  int
}

// shown is the output of the command. A field that does not apply is nil.
type shown struct {
	Loader  string    `json:"loader"`
	Version string    `json:"version"`
	Hash    string    `json:"hash"`
	Name    untrusted `json:"name"` // in Redis
	Kind    string    `json:"kind"`
	Type    string    `json:"redis_type"`
	Size    int64     `json:"size"` // of the string in Redis
	Now     string    `json:"redis_time"`

	HardEnd *string `json:"hard_end,omitempty"`
	HardIn  *int64  `json:"hard_in_ms,omitempty"`

	Token *string    `json:"token,omitempty"` // the token of a lease, or of the mark of a hold
	Entry *shownHead `json:"entry,omitempty"`
	Hold  *shownHold `json:"hold,omitempty"`

	LoaderGeneration uint64      `json:"loader_generation"` // 0: Redis has none
	Value            *shownValue `json:"value,omitempty"`

	now  time.Time
	hard time.Duration
	rng  int // the range of the key
}

// shownHead is the header of an entry.
type shownHead struct {
	Stamp      string `json:"stamp"`
	SoftEnd    string `json:"soft_end"`
	Fresh      bool   `json:"fresh"`
	CostMicros *int64 `json:"load_cost_us,omitempty"` // nil: unknown while a refresh has claimed the entry
	Null       bool   `json:"null"`
	Compressed bool   `json:"compressed"`
	Codec      string `json:"codec"`
	Payload    int64  `json:"payload_size"` // as stored
	LongKey    bool   `json:"long_key"`
	Generation uint64 `json:"generation"`
	Outdated   bool   `json:"outdated"` // all keys of the loader were invalidated since
	Refresh    string `json:"refresh,omitempty"`

	shownGroups

	soft time.Time
}

// shownHold describes the hold of a key.
type shownHold struct {
	Writers  int     `json:"writers"`  // whose holds have not ended
	Left     int     `json:"left"`     // whose holds have ended by time, not by Hold.Invalidate
	Replicas bool    `json:"replicas"` // it waits for replicas (Options.ReplicaLag)
	Until    *string `json:"until,omitempty"`
	Flaw     string  `json:"flaw,omitempty"`

	until time.Time
}

func (g *getting) run(ctx context.Context, args []string) error {
	switch {
	case len(args) != 2:
		return usagef("get: LOADER and KEY, not %d arguments", len(args))
	case !keys.ValidName(args[0]):
		return usagef("get: LOADER: letters, digits, '_', '.' and '-'")
	case !keys.ValidName(g.version):
		return usagef("get: --version: letters, digits, '_', '.' and '-'")
	case g.maxValue < 1 || g.maxValue > mostValue:
		return usagef("get: --max-value %d: from 1 to %d", g.maxValue, mostValue)
	}
	ctx, cancel := g.limited(ctx)
	defer cancel()
	return g.onRedis(ctx, func(ctx context.Context, rdb redis.UniversalClient) error {
		return g.look(ctx, rdb, args[0], args[1])
	})
}

func (g *getting) look(ctx context.Context, rdb redis.UniversalClient, loader, text string) error {
	space := keys.NewNamespace(g.prefix, loader, g.version)
	name, long := space.Name(text)
	s := &shown{Loader: loader, Version: g.version, Hash: keyHash(space.Hash(text)), Name: untrusted(name)}
	read := int64(lease.HeadSize + lease.MaxGroupsSize)
	if long {
		read += int64(len(text))
	}
	if g.showValue {
		read += int64(g.maxValue) + 1
	}
	raw, err := g.read(ctx, rdb, s, read)
	if err != nil {
		return err
	}
	g.decode(s, raw, text, long)
	if err := g.readGroups(ctx, rdb, s); err != nil {
		return err
	}
	if err := g.show(s, s.rows); err != nil {
		return err
	}
	if s.Kind == "absent" {
		return errAbsent
	}
	return nil
}

// read reads everything in one transaction, on the server of the key, so that the output is
// consistent. Only the loader's generation is read separately, because another server may hold
// it, and the numbers of its groups (readGroups).
func (g *getting) read(ctx context.Context, rdb redis.UniversalClient, s *shown, most int64) (raw []byte, err error) {
	c, err := conn.New(rdb, g.timeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	name := string(s.Name)
	node, err := home(ctx, rdb, name)
	if err != nil {
		return nil, err
	}
	hold := keys.Hold(name)
	tx := node.TxPipeline()
	kind, now := tx.Type(ctx, name), tx.Time(ctx)
	size, bytes, left := tx.StrLen(ctx, name), tx.GetRange(ctx, name, 0, most-1), tx.PTTL(ctx, name)
	holders, holdLeft := tx.ZRangeWithScores(ctx, hold, 0, mostHolders-1), tx.PTTL(ctx, hold)
	_, _ = tx.Exec(ctx) // each has its own error
	for _, cmd := range []redis.Cmder{kind, now, left, holdLeft} {
		if cmd.Err() != nil {
			return nil, cmd.Err()
		}
	}
	s.Type, s.now, s.hard = kind.Val(), now.Val(), left.Val()
	s.Now = s.now.UTC().Format(timeLayout)
	s.Hold = holdOf(holders, holdLeft.Val(), s.now)
	if s.hard > 0 {
		ms := s.hard.Milliseconds()
		s.HardEnd, s.HardIn = stamp(s.now.Add(s.hard)), &ms
	}
	if s.Type == "string" {
		if err := size.Err(); err != nil {
			return nil, err
		}
		if raw, err = bytes.Bytes(); err != nil {
			return nil, err
		}
		s.Size = size.Val()
	}
	s.rng = c.Range(name)
	s.LoaderGeneration, err = generation(ctx, rdb, invalidation.Numbers(g.prefix, s.rng), s.Loader)
	return raw, err
}

// generation returns the generation of a loader. It is 0 if there is none, or if the field does
// not contain a number.
func generation(ctx context.Context, rdb redis.UniversalClient, numbers, loader string) (uint64, error) {
	digits, err := rdb.HGet(ctx, numbers, loader).Result()
	if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE") {
		return 0, nil
	}
	n, _ := strconv.ParseUint(digits, 10, 64)
	return n, err
}

const mostHolders = 1000

// holdOf reads the holders of a key. It returns nil if there is no hold.
func holdOf(holders *redis.ZSliceCmd, left time.Duration, now time.Time) *shownHold {
	if left == -2 { // go-redis returns this for a missing key
		return nil
	}
	h := &shownHold{}
	if left > 0 {
		h.until = now.Add(left)
		h.Until = stamp(h.until)
	}
	if holders.Err() != nil {
		h.Flaw = "the key of the hold in Redis holds something else"
		return h
	}
	for _, z := range holders.Val() {
		switch over := time.UnixMilli(int64(z.Score)).Before(now); {
		case z.Member == "lag":
			h.Replicas = true
		case over:
			h.Left++
		default:
			h.Writers++
		}
	}
	return h
}

// decode decodes raw into s.
func (g *getting) decode(s *shown, raw []byte, text string, long bool) {
	switch s.Type {
	case "none":
		s.Kind = "absent"
		return
	case "string":
	default:
		s.Kind = "foreign"
		return
	}
	state := lease.Decode(raw)
	if int64(len(raw)) != s.Size && state.Kind != lease.Stored { // only its beginning was read
		state.Kind = lease.Unknown
	}
	switch state.Kind {
	case lease.Stored:
		g.decodeEntry(s, &state, text, long)
	case lease.Busy:
		s.Kind, s.Token = "lease", tokenText(state.Token)
	case lease.Held:
		s.Kind, s.Token = "hold mark", tokenText(state.Token)
	case lease.Failed:
		s.Kind = "error marker"
	case lease.Unstorable:
		s.Kind = "unstorable"
	default:
		s.Kind = "undecodable"
	}
}

func tokenText(t lease.Token) *string {
	text := t.String()
	return &text
}

func (g *getting) decodeEntry(s *shown, state *lease.State, text string, long bool) {
	e := &state.Entry
	s.Kind = "entry"
	if e.Null {
		s.Kind = "null"
	}
	if !e.Unkey(text, long) {
		s.Kind = "undecodable" // the entry of another key, or cut off
		return
	}
	payload := s.Size - int64(len(state.Raw)-len(e.Payload)) // of which only the beginning may have been read
	s.Entry = &shownHead{
		Stamp: e.Stamp.String(), SoftEnd: e.Expiry.UTC().Format(timeLayout), soft: e.Expiry,
		Fresh: s.now.Before(e.Expiry), Null: e.Null, Compressed: e.Compressed,
		Codec: codec.ID(e.Codec).String(), Payload: payload, LongKey: e.Keyed, Generation: e.Generation,
		Outdated:    e.Generation < s.LoaderGeneration,
		shownGroups: groupsOf(e),
	}
	if !e.Claimed {
		cost := e.Cost.Microseconds()
		s.Entry.CostMicros = &cost
	}
	switch ends := time.Duration(int32(e.ClaimEnds-uint32(s.now.UnixMilli()))) * time.Millisecond; {
	// the end of the claim is stored modulo 2^32
	case !e.Claimed:
	case !e.Taken(s.now):
		s.Entry.Refresh = "began, and its process has died or stopped"
	case e.Failed():
		s.Entry.Refresh = fmt.Sprintf("failed a moment ago; the next is tried %s", from(ends))
	default:
		s.Entry.Refresh = fmt.Sprintf("in progress; unless it is renewed, another may begin %s", from(ends))
	}
	if g.showValue && !e.Null {
		s.Value = g.value(e, payload)
	}
}

func (s *shown) rows(row func(cells ...any)) {
	row("loader", s.Loader, "version "+s.Version)
	row("key", s.Name, s.Hash)
	row("kind", s.Kind, kinds[s.Kind])
	if s.Type != "none" {
		row("in Redis", fmt.Sprintf("%d bytes", s.Size), s.Type)
		row("hard end", s.hardEnd())
	}
	if s.Token != nil {
		row("held by", *s.Token)
	}
	if e := s.Entry; e != nil {
		e.rows(row, s.now)
	}
	if s.LoaderGeneration == 0 {
		row("generation", "none", "Redis does not know this loader")
	} else {
		row("generation", s.LoaderGeneration,
			"of the loader since "+moment(time.UnixMicro(int64(min(s.LoaderGeneration, math.MaxInt64))), s.now))
	}
	s.Hold.row(row, s.now)
	if s.Value != nil {
		s.Value.row(row)
	}
}

// kinds explains the kinds.
var kinds = map[string]string{
	"absent":       "Redis holds nothing under this name",
	"entry":        "a value",
	"null":         "the database has no such row",
	"lease":        "a load is in progress; no other process loads the key until it ends",
	"hold mark":    "a writer holds the key",
	"error marker": "a load failed a moment ago",
	"unstorable":   "a load has just returned a value that cannot be stored; each process loads it for itself",
	"foreign":      "not a string: the library did not write it",
	"undecodable": "this version cannot read it: another version or another program wrote it, or it is cut off; the " +
		"next read replaces it",
}

func (s *shown) hardEnd() string {
	if s.HardEnd == nil {
		return "none: it stays until it is deleted"
	}
	return moment(s.now.Add(s.hard), s.now)
}

func (s *shownHead) rows(row func(cells ...any), now time.Time) {
	freshness := "fresh"
	if !s.Fresh {
		freshness = "stale"
	}
	row("soft end", moment(s.soft, now), freshness)
	row("stamp", s.Stamp)
	if s.CostMicros != nil {
		row("load cost", short(time.Duration(*s.CostMicros)*time.Microsecond))
	}
	compressed := ""
	if s.Compressed {
		compressed = ", compressed"
	}
	if !s.Null {
		row("payload", fmt.Sprintf("%d bytes, %s%s", s.Payload, s.Codec, compressed))
	}
	if s.LongKey {
		row("long key", "the name has a hash, the entry the key")
	}
	outdated := ""
	if s.Outdated {
		outdated = "outdated: all keys of the loader were invalidated since"
	}
	row("entry of", fmt.Sprintf("generation %d", s.Generation), outdated)
	s.shownGroups.row(row)
	if s.Refresh != "" {
		row("refresh", s.Refresh)
	}
}

func (s *shownHold) row(row func(cells ...any), now time.Time) {
	if s == nil {
		row("on hold", "no")
		return
	}
	text := "yes: " + count(s.Writers, "writer")
	if s.Left > 0 {
		text += fmt.Sprintf(", %d that have not left", s.Left)
	}
	if s.Replicas {
		text += ", and until the replicas have the change"
	}
	if s.Flaw != "" {
		text = "yes: " + s.Flaw
	}
	until := "without end"
	if !s.until.IsZero() {
		until = "until " + moment(s.until, now)
	}
	row("on hold", text, until)
}
