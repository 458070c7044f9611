package testenv

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// SharedMySQL returns the MySQL server of the test process. If MySQL is not installed, the test is
// skipped.
func SharedMySQL(t testing.TB) *SQLServer {
	t.Helper()
	return MySQL.Shared(t)
}

// StartMySQL is like StartMariaDB, for MySQL.
func StartMySQL(t testing.TB, args ...string) *SQLServer {
	t.Helper()
	return MySQL.Start(t, args...)
}

var errNoMySQL = errors.New("MySQL is not installed: `make mysql` downloads it, and installs nothing")

// fetched returns the folder where scripts/fetch.sh puts a downloaded server.
func fetched(name string) string {
	if strings.HasPrefix(name, "postgresql-") && os.Getuid() == 0 { // its user cannot pass root's home
		return filepath.Join("/var/cache/cacheaside", name)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "cacheaside", name)
}

// mysqld returns the path of the program: one on PATH or in /usr/sbin that is not MariaDB's, or the
// one that scripts/fetch.sh has downloaded.
var mysqld = sync.OnceValues(func() (string, error) {
	candidates := []string{"/usr/sbin/mysqld"}
	if path, err := exec.LookPath("mysqld"); err == nil {
		candidates = []string{path, "/usr/sbin/mysqld"}
	}
	if folder := fetched("mysql"); folder != "" {
		candidates = append(candidates, filepath.Join(folder, "bin", "mysqld"))
	}
	for _, path := range candidates {
		version, err := exec.Command(path, "--no-defaults", "--version").Output()
		if err == nil && strings.Contains(string(version), "Ver ") && !strings.Contains(string(version), "MariaDB") {
			return path, nil
		}
	}
	return "", errNoMySQL
})

// mySQL returns the dialect of mysqld, or an error if it is not installed.
func mySQL() (dialect, error) {
	daemon, err := mysqld()
	if err != nil {
		return dialect{}, err
	}
	me, err := user.Current()
	if err != nil {
		return dialect{}, err
	}
	kept := ""
	if daemon == filepath.Join(fetched("mysql"), "bin", "mysqld") {
		kept = filepath.Join(fetched("mysql"), "empty-1") // change the number when the arguments of install change
	}
	return dialect{
		daemon: daemon,
		kept:   kept,
		early:  []string{"--lower-case-table-names"},
		install: func(ctx context.Context, data, temp string, args ...string) error {
			// The root user of a new data directory may connect only through the socket.
			users := filepath.Join(temp, "users.sql")
			if err := os.WriteFile(users,
				[]byte("CREATE USER root@'127.0.0.1' IDENTIFIED BY '';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH "+
					"GRANT OPTION;\n"), 0o600); err != nil {
				return err
			}
			// The data need not survive a power failure. With the defaults, mysqld waits for the
			// disk most of the time.
			return prepare(ctx, daemon,
				append([]string{"--no-defaults", "--initialize-insecure", "--user=" + me.Username, "--datadir=" + data,
					"--tmpdir=" + temp,
					"--skip-log-bin", "--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0",
					"--innodb-doublewrite=OFF", "--innodb-redo-log-capacity=8M",
					"--secure-file-priv=", "--init-file=" + users}, args...)...)
		},
		args: []string{
			"--innodb-redo-log-capacity=32M", "--innodb-buffer-pool-size=64M", "--innodb-log-buffer-size=8M",
			"--innodb-buffer-pool-instances=1",
			"--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--mysqlx=OFF", "--secure-file-priv=",
			"--log-error-verbosity=1",
			"--innodb-doublewrite=OFF", "--innodb-buffer-pool-dump-at-shutdown=OFF",
			"--innodb-buffer-pool-load-at-startup=OFF",
		},
	}, nil
}
