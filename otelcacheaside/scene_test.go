package otelcacheaside_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/meter"
	"github.com/cacheaside/cacheaside/otelcacheaside"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var errBroken = errors.New("broken: secret-error")

// scene is a process with all that there is to be observed, and a page that Prometheus would
// scrape.
type scene struct {
	*testing.T
	see    *otelcacheaside.Instruments
	rdb    *redis.Client
	cache  *cacheaside.Cache
	users  *cacheaside.Loader[string, string]
	orders *cacheaside.Loader[int, string]
	locker *lock.Locker
	server *httptest.Server
}

func newScene(t *testing.T, name string) *scene {
	t.Helper()
	_, rdb := testenv.Mini(t)
	x := &scene{T: t, rdb: rdb}
	registry := prometheus.NewRegistry()
	export, err := exporter.New(exporter.WithRegisterer(registry))
	check(t, err)
	provider := metric.NewMeterProvider(metric.WithReader(export))
	t.Cleanup(func() { check(t, provider.Shutdown(context.Background())) })
	x.see, err = otelcacheaside.New(&otelcacheaside.Options{Name: name, MeterProvider: provider})
	check(t, err)
	t.Cleanup(func() { check(t, x.see.Close()) })

	x.cache, err = cacheaside.New(rdb, &cacheaside.Options{Observer: x.see, RedisTimeout: testenv.Hang,
		ReadTimeout: testenv.Hang})
	check(t, err)
	t.Cleanup(func() { x.cache.Close() })
	filter, err := bloom.NewRedis(rdb, "users", 1000, 0.01, nil)
	check(t, err)
	t.Cleanup(func() { filter.Close() })
	x.users, err = cacheaside.NewLoader(x.cache, "user", func(_ context.Context, key string) (string, error) {
		switch {
		case strings.HasSuffix(key, "7"):
			return "", cacheaside.ErrNotFound
		case strings.HasSuffix(key, "8"):
			return "", fmt.Errorf("%w of %s", errBroken, key)
		case strings.HasSuffix(key, "9"):
			panic("secret-panic")
		}
		return "secret-value", nil
	}, &cacheaside.LoaderOptions{Filter: filter, BreakAt: -1, ErrorTTL: time.Millisecond})
	check(t, err)
	x.orders, err = cacheaside.NewLoader(x.cache, "order",
		func(_ context.Context, key int) (string, error) { return fmt.Sprint("secret-order-", key), nil }, nil)
	check(t, err)

	db := sqlx.NewDb(sql.OpenDB(nowhere(t)), "mysql")
	t.Cleanup(func() { db.Close() })
	writer, err := consistency.NewWriter(db, x.cache, &consistency.Options{Level: consistency.Inline})
	check(t, err)
	t.Cleanup(func() { writer.Close() })
	consumer, err := canal.NewConsumer(x.cache, silent{}, nil,
		[]canal.Binding{canal.Bind(x.orders, "shop", "orders", canal.IntColumn[int]("id"))}, nil)
	check(t, err)
	x.locker, err = lock.NewLocal(&lock.Options{Observer: x.see})
	check(t, err)
	t.Cleanup(func() { x.locker.Close() })

	check(t, x.see.Cache(x.cache))
	check(t, x.see.Filter("users", filter))
	check(t, x.see.Writer("orders", writer))
	check(t, x.see.Consumer("shop", consumer))
	gauge, err := meter.New(x.cache, &meter.Options{Share: 1, After: []time.Duration{100 * time.Millisecond}})
	check(t, err)
	t.Cleanup(func() { gauge.Close() })
	check(t, x.see.Meter("writes", gauge))
	x.server = httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(x.server.Close)
	return x
}

// nowhere is a database that is not asked.
func nowhere(t testing.TB) driver.Connector {
	c, err := mysql.NewConnector(&mysql.Config{Addr: "127.0.0.1:1", Net: "tcp"})
	check(t, err)
	return c
}

// silent is a Source that has nothing to tell.
type silent struct{}

func (silent) Run(ctx context.Context, _ event.Need, _ chan<- event.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

// series are the lines of a scrape: name and labels, and the value.
type series map[string]string

var line = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*(?:\{.*\})?) (\S+)$`)

// scrape reads the page, and fails if it holds anything that is nobody's business.
func (s *scene) scrape() series {
	s.Helper()
	r, err := s.server.Client().Get(s.server.URL)
	check(s, err)
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	check(s, err)
	if i := strings.Index(string(page), "secret"); i >= 0 {
		s.Errorf("the page tells %q", page[max(0, i-80):min(len(page), i+40)])
	}
	all := make(series)
	for l := range strings.Lines(string(page)) {
		if m := line.FindStringSubmatch(strings.TrimSpace(l)); m != nil {
			if _, twice := all[m[1]]; twice {
				s.Errorf("%s is there twice", m[1])
			}
			all[m[1]] = m[2]
		}
	}
	return all
}
