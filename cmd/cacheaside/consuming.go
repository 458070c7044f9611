package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// consuming is the part of a run that reads how far a Consumer has come.
type consuming struct {
	*tool
	table, name, variable, parking string
}

func (c *consuming) register(flags *flag.FlagSet) {
	flags.StringVar(&c.table, "checkpoint-table", "cacheaside_checkpoint",
		"SQLCheckpointOptions.Table: the `TABLE`, or schema.table. Default: cacheaside_checkpoint")
	flags.StringVar(&c.name, "name", "canal",
		"SQLCheckpointOptions.Name: the `NAME` of the Consumer's checkpoint. Default: canal")
	flags.StringVar(&c.variable, "checkpoint-dsn-env", "",
		"the environment variable `NAME` that holds the DSN of the database with the checkpoint and the parked "+
			"messages. Default: the server itself")
	flags.StringVar(&c.parking, "parking-table", "",
		"parking.TableOptions.Table: count the parked messages of this `TABLE`")
}

type shownSaved struct {
	Position untrusted `json:"position"`
	Token    int64     `json:"token"`
	Time     *string   `json:"time"`

	time time.Time
}

// rows shows the position, or nothing if none is saved.
func (s *shownSaved) rows(row func(...any)) {
	if s != nil {
		row("saved", s.Position)
		row("", moment(s.time, time.Now()), fmt.Sprintf("token %d", s.Token))
	}
}

// notSaved describes the progress if no position is saved.
const notSaved = "no position is saved: no Consumer of this name has begun, or it uses another table"

// read returns the saved position of the Consumer, or nil, and the number of parked messages.
func (c *consuming) read(ctx context.Context) (saved *shownSaved, parked *int64, err error) {
	err = c.onDatabase(ctx, c.variable, func(ctx context.Context, db *sqlx.DB) error {
		checkpoint, err := canal.NewSQLCheckpoint(db, &canal.SQLCheckpointOptions{Name: c.name, Table: c.table})
		if err != nil {
			return usagef("%s", strings.TrimPrefix(err.Error(), "canal: "))
		}
		if c.parking != "" {
			p, err := parking.NewTable(db, &parking.TableOptions{Table: c.parking})
			if err != nil {
				return usagef("%s", strings.TrimPrefix(err.Error(), "canal: "))
			}
			n, err := p.Count(ctx)
			if err != nil {
				return err
			}
			parked = &n
		}
		s, found, err := checkpoint.Read(ctx)
		if found {
			saved = &shownSaved{Position: untrusted(s.Position), Token: s.Token, Time: stamp(s.Time), time: s.Time}
		}
		return err
	})
	return saved, parked, err
}

// verdictOf returns an error if the Consumer cannot continue, or a setting is wrong. That no
// position is saved is only an error if there is no other.
func verdictOf(settings []setting, state, words string) error {
	var all []error
	for _, set := range settings {
		if !set.OK {
			all = append(all, fmt.Errorf("%s is %s: %s", set.Name, quoted(set.Value), set.Needed))
		}
	}
	switch state {
	case "lost", "ahead", "unreadable":
		all = append(all, fmt.Errorf("the Consumer cannot continue from its position: %s", words))
	case "none":
		if len(all) == 0 {
			return errAbsent
		}
	}
	return errors.Join(all...)
}
