package pglogical

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A fault happens before the Consumer is killed. do returns a function that ends it, or nil. That
// is called when the Consumer is dead.
type fault struct {
	name string
	ddl  bool
	do   func(p *play) (end func())
}

var (
	serverDies = fault{name: "the server killed", do: func(p *play) func() {
		p.server.Kill()
		p.server.Restart(p.T)
		return nil
	}}
	redisDies = fault{name: "Redis killed", do: func(p *play) func() {
		p.redis.Kill()
		p.written()
		return func() { p.redis.Restart(p.T) }
	}}
	redisHangs = fault{name: "Redis hangs", do: func(p *play) func() {
		p.redis.Pause()
		p.written()
		return p.redis.Resume
	}}
	slotLost = fault{name: "the slot dropped", do: func(p *play) func() { return p.dropSlot }}

	columns = fault{name: "a column dropped, and another added", ddl: true, do: func(p *play) func() {
		p.alter("ALTER TABLE users DROP COLUMN note")
		p.alter("ALTER TABLE users ADD COLUMN note TEXT")
		return nil
	}}
	renamed = fault{name: "a column renamed", ddl: true, do: func(p *play) func() {
		p.alter("ALTER TABLE users RENAME COLUMN note TO remark")
		p.alter("ALTER TABLE users RENAME COLUMN remark TO note")
		return nil
	}}
	swapped = fault{name: "the table replaced", ddl: true, do: func(p *play) func() {
		p.alter("LOCK TABLE users",
			"CREATE TABLE users_new (n BIGINT, email TEXT NOT NULL UNIQUE, note TEXT, id BIGINT PRIMARY KEY)",
			"ALTER TABLE users_new REPLICA IDENTITY FULL",
			"INSERT INTO users_new SELECT n + 1000000000, email, note, id FROM users", "DROP TABLE users",
			"ALTER TABLE users_new RENAME TO users")
		return nil
	}}
	rewritten = fault{name: "the table rewritten", ddl: true, do: func(p *play) func() {
		p.alter("ALTER TABLE users ALTER COLUMN n TYPE BIGINT USING n + 1000000000")
		return nil
	}}
	truncated = fault{name: "TRUNCATE", ddl: true, do: func(p *play) func() {
		p.alter("TRUNCATE users")
		return nil
	}}
	unpublished = fault{name: "changes not published", ddl: true, do: func(p *play) func() {
		p.alter("LOCK TABLE users IN EXCLUSIVE MODE", "ALTER PUBLICATION cacheaside SET (publish = 'insert')",
			"UPDATE users SET n = n + 1000000000",
			"ALTER PUBLICATION cacheaside SET (publish = 'insert, update, delete, truncate')")
		return nil
	}}
)

// acts are played one after the other. After each of them all keys are compared. DDL and a lost
// position make the Consumer invalidate everything, which would repair what others leave behind.
var acts = [][]fault{
	{serverDies, redisHangs},
	{redisDies, serverDies},
	{slotLost},
	{columns, swapped},
	{rewritten, unpublished},
}

var moreActs = slices.Concat(
	slices.Repeat([][]fault{{serverDies}}, 3),
	slices.Repeat([][]fault{{redisDies}}, 2),
	slices.Repeat([][]fault{{serverDies, redisDies}}, 4),
	[][]fault{
		{redisHangs},
		{renamed, truncated},
		{rewritten, serverDies},
		{swapped, redisDies},
		{columns, serverDies, redisDies},
		{},
	},
)

// alter executes statements in one transaction. It tries again if that fails: writers cause
// deadlocks, and after a kill of the server connections are broken.
func (p *play) alter(statements ...string) {
	p.Helper()
	time.Sleep(rand.N(50 * time.Millisecond))
	try := func() error {
		tx, err := p.DB.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		for _, s := range statements {
			if _, err := tx.Exec(s); err != nil {
				return err
			}
		}
		return tx.Commit()
	}
	var err error
	for began := time.Now(); time.Since(began) < testenv.Hang; {
		if err = try(); err == nil {
			return
		}
	}
	p.Fatalf("%q: %v", statements, err)
}
