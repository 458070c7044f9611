package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"syscall"
	"testing"
)

const mariaDBPackage = "mariadb-server"

// SharedMariaDB returns the MariaDB server of the test process.
func SharedMariaDB(t testing.TB) *SQLServer {
	t.Helper()
	return MariaDB.Shared(t)
}

// StartMariaDB starts a MariaDB for this test. args override those arguments that every server
// gets.
func StartMariaDB(t testing.TB, args ...string) *SQLServer {
	t.Helper()
	return MariaDB.Start(t, args...)
}

// mariaDB returns the dialect of mariadbd, or an error if it is not installed.
func mariaDB() (dialect, error) {
	daemon, err := lookup("mariadbd", mariaDBPackage)
	if err != nil {
		return dialect{}, err
	}
	install, err := lookup("mariadb-install-db", mariaDBPackage)
	if err != nil {
		return dialect{}, err
	}
	return dialect{
		daemon: daemon,
		install: func(ctx context.Context, data, temp string, args ...string) error {
			return installMariaDB(ctx, install, data, temp, args...)
		},
		args: []string{"--innodb-log-file-size=4M", "--innodb-buffer-pool-size=128M"},
	}, nil
}

// installMariaDB makes a data directory.
func installMariaDB(ctx context.Context, install, data, temp string, args ...string) error {
	me, err := user.Current()
	if err != nil {
		return err
	}
	return prepare(ctx, install,
		append([]string{"--no-defaults", "--datadir=" + data, "--tmpdir=" + temp, "--user=" + me.Username,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
			"--innodb-log-file-size=4M"}, args...)...)
}

// prepare runs a program that makes a data directory. If ctx ends, it kills the program and the
// processes that the program has started.
func prepare(ctx context.Context, program string, args ...string) error {
	return prepareAs(ctx, nil, "", program, args...)
}

// prepareAs is prepare in a folder, as another user unless user is nil.
func prepareAs(ctx context.Context, user *syscall.Credential, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: user} // it may be a script
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}

// RunMariaDB starts a server with the settings used for tests, for a program that is not a test,
// such as an example. Its user is root, without a password. stop kills the server and removes its
// files. The same happens when the program ends, even by a panic or a signal. ctx limits the start
// only.
func RunMariaDB(ctx context.Context) (addr string, stop func(), err error) {
	d, err := mariaDB()
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			stopIdle()
		}
	}()
	m, err := launchSQL(ctx, MariaDB, d,
		func(ctx context.Context, data, temp string) error { return d.install(ctx, data, temp) })
	if err != nil {
		return "", nil, err
	}
	return m.Addr, func() {
		m.Kill()
		os.RemoveAll(m.dir)
		stopIdle()
	}, nil
}
