package gormwrites

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/utils/tests"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/ormtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The cache of GORM's prepared statements has a goroutine that does not end.
func TestMain(m *testing.M) {
	testenv.Main(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// An item is a row of the table of ormtest, with a soft delete.
type item struct {
	ID        int64
	Code      string
	Category  string
	Price     int64
	DeletedAt gorm.DeletedAt
}

func (item) TableName() string { return "items" }

// A plainItem is an item that Delete removes.
type plainItem struct {
	ID       int64
	Code     string
	Category string
	Price    int64
}

func (plainItem) TableName() string { return "items" }

// sqliteDialector is enough of a dialect for SQLite, without the driver of another package.
type sqliteDialector struct {
	tests.DummyDialector
	db *sql.DB
}

func (s sqliteDialector) Name() string { return "sqlite" }

func (s sqliteDialector) Initialize(db *gorm.DB) error {
	db.ConnPool = s.db
	return s.DummyDialector.Initialize(db)
}

func (s sqliteDialector) SavePoint(tx *gorm.DB, name string) error {
	return tx.Exec("SAVEPOINT " + name).Error
}

func (s sqliteDialector) RollbackTo(tx *gorm.DB, name string) error {
	return tx.Exec("ROLLBACK TO SAVEPOINT " + name).Error
}

func openGORM(db *sqlx.DB, config gorm.Config) (*gorm.DB, error) {
	config.Logger = logger.Discard
	switch db.DriverName() {
	case "pgx":
		return gorm.Open(postgres.New(postgres.Config{Conn: db.DB}), &config)
	case "mysql":
		return gorm.Open(mysql.New(mysql.Config{Conn: db.DB}), &config)
	}
	return gorm.Open(sqliteDialector{db: db.DB}, &config)
}

// world is a World with GORM and the plugin.
type world struct {
	*ormtest.World
	gorm   *gorm.DB
	plugin *Plugin
}

func start(t *testing.T, db *sqlx.DB, config gorm.Config, options *Options) *world {
	t.Helper()
	return startOn(t, db, ormtest.Client(t, testenv.SharedRedis(t)), config, options)
}

func startOn(
	t *testing.T, db *sqlx.DB, client redis.UniversalClient, config gorm.Config, options *Options,
) *world {
	t.Helper()
	w := &world{World: ormtest.Start(t, db, client, consistency.DefaultLevel)}
	var err error
	if w.plugin, err = New(w.Writer, w.Bindings, options); err != nil {
		t.Fatal(err)
	}
	if w.gorm, err = openGORM(db, config); err != nil {
		t.Fatal(err)
	}
	if err := w.gorm.Use(w.plugin); err != nil {
		t.Fatal(err)
	}
	w.gorm = w.gorm.WithContext(t.Context())
	return w
}

// fresh reports an error for each cached value that differs from the database.
func (w *world) fresh(t *testing.T) {
	t.Helper()
	for _, stale := range w.Stale(context.WithoutCancel(t.Context())) {
		t.Error(stale)
	}
}
