package mysqlbinlog

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/cacheaside/cacheaside/canal"
)

// TestPasswordThatChanges changes the password of the user while a Source runs. The next Run calls
// PasswordFunc again. An error of PasswordFunc is no setup error, so the Consumer tries again.
func TestPasswordThatChanges(t *testing.T) {
	eachOwn(t, func(x *world) {
		t := x.T
		x.Do("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE USER renewed IDENTIFIED BY 'first'",
			"GRANT REPLICATION SLAVE, SELECT ON *.* TO renewed")
		var password atomic.Value
		password.Store("first")
		s := x.source(func(o *Options) {
			o.User = "renewed"
			o.PasswordFunc = func(context.Context) (string, error) {
				if p := password.Load().(string); p != "" {
					return p, nil
				}
				return "", errors.New("no token")
			}
		})
		need := x.Need([]string{"a", "id"})
		l := x.Listen(s, need)
		x.Do("INSERT INTO a VALUES (1)")
		l.Want("insert a: 1")
		_ = l.Stop()
		x.Do("ALTER USER renewed IDENTIFIED BY 'second'")
		password.Store("")
		err := x.Start(s, need).Ended()
		if err == nil || err.Error() != "Options.PasswordFunc: no token" || errors.Is(err, canal.ErrSetup) {
			t.Errorf("PasswordFunc fails: %v", err)
		}
		password.Store("first")
		if err := x.Start(s, need).Ended(); err == nil || errors.Is(err, canal.ErrSetup) {
			t.Errorf("with the old password: %v", err)
		}
		password.Store("second")
		l = x.Listen(s, need)
		x.Do("INSERT INTO a VALUES (2)")
		l.Want("insert a: 2")
	})
}
