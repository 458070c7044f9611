package testenv

import (
	"strconv"
	"sync"
	"testing"
)

// databases are those of the tests that use a server.
type databases struct {
	mu    sync.Mutex
	count int
	names map[testing.TB]string
}

// forTest returns the name of the database of a test. The first call creates it by exec, and the
// end of the test drops it.
func (d *databases) forTest(t testing.TB, s *server, exec func(statement string) error) string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if name := d.names[t]; name != "" {
		return name
	}
	d.count++
	name := "test" + strconv.Itoa(d.count)
	if err := exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	if d.names == nil {
		d.names = map[testing.TB]string{}
	}
	d.names[t] = name
	t.Cleanup(func() {
		d.mu.Lock()
		delete(d.names, t)
		d.mu.Unlock()
		s.Resume()
		if !s.alive() {
			return // the test has killed the server
		}
		if err := exec("DROP DATABASE " + name); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return name
}
