package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

var outboxLsCommand = command{
	name: "outbox ls", args: "",
	short: "list what an outbox still has to invalidate",
	long: `Shows the table of a sqloutbox.Outbox: how many items it holds, the age of the oldest,
and the items that are due first, each with its namespace, loader, hash of the key or group
(its text with --show-keys), time until it is due, and number of failures. The table does not hold
the reasons for failures: the Relay logs them. It claims no item, and changes nothing.`,
	example: "outbox ls --limit 20",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		o := &outboxing{tool: t}
		o.register(flags)
		flags.BoolVar(&o.keys, "show-keys", false, "show keys, not hashes")
		flags.IntVar(&o.limit, "limit", 50, "the `NUMBER` of items to show, at most 1000. Default: 50")
		return o.ls
	},
}

var outboxRetryCommand = command{
	name: "outbox retry", args: "",
	short: "make failed items of an outbox due now",
	long: `Makes items due now that a Relay has put off because they failed: with --id those items,
for any reason; with --all all that have failed at least once. A running Relay
executes them immediately. It asks first, and removes nothing from the outbox.`,
	example: "outbox retry --all",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		o := &outboxing{tool: t}
		o.register(flags)
		t.askable(flags)
		flags.StringVar(&o.ids, "id", "", "the `IDS` of items, as \"outbox ls\" shows them, separated by commas")
		flags.BoolVar(&o.all, "all", false, "all items that have failed")
		return o.retry
	},
}

// outboxing is one run of the commands.
type outboxing struct {
	*tool
	table string
	space string
	keys  bool
	limit int
	ids   string
	all   bool
}

func (o *outboxing) register(flags *flag.FlagSet) {
	flags.StringVar(&o.space, "namespace", "",
		"only items of this `NAMESPACE`: sqloutbox.Options.Namespace, or the Options.Prefix of the cache. Default: all")
	flags.StringVar(&o.table, "table", "cacheaside_outbox",
		"sqloutbox.Options.Table: the `TABLE`, or schema.table. Default: cacheaside_outbox")
}

func (o *outboxing) open(db *sqlx.DB) (*sqloutbox.Outbox, error) {
	options := &sqloutbox.Options{Namespace: o.space}
	if _, err := sqloutbox.New(db, dialectOf(db), options); err != nil {
		return nil, usagef("--namespace: 1 to 255 letters, digits, '_', '.' and '-'")
	}
	options.Table = o.table
	outbox, err := sqloutbox.New(db, dialectOf(db), options)
	if err != nil {
		return nil, usagef("--table: an identifier of 1 to 60 letters, digits and '_', or schema.table")
	}
	return outbox, nil
}

// shownItem is an item in the output.
type shownItem struct {
	Namespace  untrusted  `json:"namespace"`
	ID         string     `json:"id"`
	Loader     string     `json:"loader"`
	Version    string     `json:"version"`
	Hash       string     `json:"hash,omitempty"`
	Key        *untrusted `json:"key,omitempty"`
	All        bool       `json:"all_keys"`
	Group      bool       `json:"group"` // Hash and Key are those of a group
	State      string     `json:"state"` // "due", "claimed" or "waits"
	DueMs      int64      `json:"due_in_ms"`
	AgeMs      int64      `json:"age_ms"`
	Attempts   int        `json:"attempts"`
	Reload     bool       `json:"reload"`
	AgainMs    int64      `json:"again_ms,omitempty"`
	Unreadable bool       `json:"unreadable,omitempty"`
}

type shownDepth struct {
	Items    int   `json:"items"`
	AtLeast  bool  `json:"at_least"` // Items is a lower bound
	Due      int   `json:"due"`
	OldestMs int64 `json:"oldest_ms"`
}

type shownSpace struct {
	Namespace untrusted `json:"namespace"`
	shownDepth
}

type shownOutbox struct {
	shownDepth              // of all of them
	Namespaces []shownSpace `json:"namespaces"`
	Listed     []shownItem  `json:"listed"`
}

// counted is the number of items at which Depth stops counting.
const counted = 100_001

func (o *outboxing) ls(ctx context.Context, args []string) error {
	switch {
	case len(args) > 0:
		return usagef("outbox ls: it has no arguments")
	case o.limit < 1 || o.limit > 1000:
		return usagef("outbox ls: --limit %d: from 1 to 1000", o.limit)
	}
	ctx, cancel := o.limited(ctx)
	defer cancel()
	return o.onDatabase(ctx, "", func(ctx context.Context, db *sqlx.DB) error {
		outbox, err := o.open(db)
		if err != nil {
			return err
		}
		s := shownOutbox{Namespaces: []shownSpace{}, Listed: []shownItem{}}
		if err := s.count(ctx, outbox, o.space); err != nil {
			return err
		}
		rows, err := outbox.List(ctx, o.limit)
		if err != nil {
			return err
		}
		for _, r := range rows {
			s.Listed = append(s.Listed, o.item(r))
		}
		return o.show(s, s.rows)
	})
}

// count adds up the namespaces, or only the given one.
func (s *shownOutbox) count(ctx context.Context, outbox *sqloutbox.Outbox, only string) error {
	depths, err := outbox.Depths(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(depths)) {
		if only != "" && name != only {
			continue
		}
		depth := depths[name]
		d := shownDepth{depth.Items, depth.Items == counted, depth.Due, depth.Oldest.Milliseconds()}
		s.Namespaces = append(s.Namespaces, shownSpace{untrusted(name), d})
		s.Items, s.Due, s.AtLeast, s.OldestMs = s.Items+d.Items, s.Due+d.Due, s.AtLeast ||
			d.AtLeast, max(s.OldestMs, d.OldestMs)
	}
	return nil
}

func (o *outboxing) item(r sqloutbox.Row) shownItem {
	i := shownItem{
		Namespace: untrusted(r.Namespace), ID: r.ID, Loader: r.Key.Loader, Version: r.Key.Version, All: r.Key.All,
		Group: r.Key.Group, State: "waits", DueMs: r.After.Milliseconds(), AgeMs: r.Age.Milliseconds(),
		Attempts: r.Attempts, Reload: r.Reload, AgainMs: r.Again.Milliseconds(), Unreadable: r.Unreadable,
	}
	switch {
	case r.After <= 0:
		i.State = "due"
	case r.Claim != "":
		i.State = "claimed"
	}
	if r.Unreadable || r.Key.All {
		return i
	}
	i.Hash = keyHash(r.Key.Hash())
	if i.Group {
		i.Hash = groupHash(r.Key.Hash())
	}
	if o.keys {
		text := untrusted(r.Key.Text)
		i.Key = &text
	}
	return i
}

func (s shownDepth) String() string {
	more := ""
	if s.AtLeast {
		more = " or more"
	}
	oldest := "no items"
	if s.Items > 0 {
		oldest = "the oldest is " + short(time.Duration(s.OldestMs)*time.Millisecond) + " old"
	}
	return fmt.Sprintf("%s%s, %d of them due; %s", count(s.Items, "item"), more, s.Due, oldest)
}

func (s shownOutbox) rows(row func(...any)) {
	row(s.shownDepth)
	if len(s.Namespaces) > 1 {
		for _, n := range s.Namespaces {
			row(fmt.Sprintf("  of %v: %v", n.Namespace, n.shownDepth))
		}
	}
	if len(s.Listed) == 0 {
		return
	}
	row()
	row("NAMESPACE", "ID", "LOADER", "KEY", "DUE", "FAILED", "AGE", "")
	for _, i := range s.Listed {
		row(i.cells()...)
	}
	if s.Items > len(s.Listed) {
		row("… and more: see --limit", "", "", "", "", "", "", "")
	}
}

func (s shownItem) cells() []any {
	key, due := s.Hash, from(time.Duration(s.DueMs)*time.Millisecond)
	switch {
	case s.Unreadable:
		key = "unreadable"
	case s.All:
		key = "all keys"
	case s.Key != nil && s.Group:
		key = "group " + s.Key.String()
	case s.Key != nil:
		key = s.Key.String()
	}
	if s.State == "due" {
		due = "now"
	}
	var notes []string
	if s.State == "claimed" {
		notes = append(notes, "a relay has claimed it")
	}
	if s.Reload {
		notes = append(notes, "by a reload")
	}
	if s.AgainMs > 0 {
		notes = append(notes, "then once more "+short(time.Duration(s.AgainMs)*time.Millisecond)+" later")
	}
	loader := s.Loader
	if s.Version != "" && s.Version != "1" { // both are names
		loader += ", version " + s.Version
	}
	return []any{s.Namespace, s.ID, loader, key, due, count(s.Attempts, "time"),
		short(time.Duration(s.AgeMs) * time.Millisecond), strings.Join(notes, ", ")}
}

func (o *outboxing) retry(ctx context.Context, args []string) error {
	var ids []string
	if o.ids != "" {
		ids = strings.Split(o.ids, ",")
	}
	switch {
	case len(args) > 0:
		return usagef("outbox retry: it has no arguments; --id names items")
	case o.all == (len(ids) > 0):
		return usagef("outbox retry: --id or --all")
	case slices.ContainsFunc(ids,
		func(id string) bool { return len(id) != 32 || strings.Trim(id, "0123456789abcdefABCDEF") != "" }):
		return usagef("outbox retry: --id: 32 hexadecimal digits each, separated by commas")
	case len(ids) > 1000:
		return usagef("outbox retry: --id: at most 1000")
	}
	return o.onDatabase(ctx, "", func(ctx context.Context, db *sqlx.DB) error {
		outbox, err := o.open(db)
		if err != nil {
			return err
		}
		if err := o.asked(ctx, outbox, len(ids)); err != nil {
			return err
		}
		var made int64
		if o.all {
			made, err = outbox.RetryAll(ctx)
		} else {
			made, err = outbox.Retry(ctx, ids...)
		}
		if err != nil {
			return err
		}
		result := struct {
			Made int64 `json:"made_due"`
		}{made}
		return o.show(result, func(row func(...any)) { row(fmt.Sprintf("made due now: %s", count(int(made), "item"))) })
	})
}

// asked shows the number of items and asks for a confirmation. Counting also checks that the
// table exists.
func (o *outboxing) asked(ctx context.Context, outbox *sqloutbox.Outbox, named int) error {
	limited, cancel := o.limited(ctx)
	defer cancel()
	var depth shownOutbox
	if err := depth.count(limited, outbox, o.space); err != nil {
		return err
	}
	subject := "All items that have failed"
	if !o.all {
		subject = fmt.Sprintf("The %d items that --id names, as far as they are there and not due yet,", named)
	}
	return o.ask(ctx, fmt.Sprintf(
		"%s will be due now, of %d items in %s, %d of which are due already. Relays execute them immediately.", subject,
		depth.Items, o.table, depth.Due))
}
