package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisTLS is a redis-server that accepts only TLS connections and requires a user name and a
// password.
type RedisTLS struct {
	Addr     string
	CAFile   string // the certificate authority of the server, PEM
	Username string // the user with the rules given to StartRedisTLS
	Password string
	*server

	roots *x509.CertPool
}

const (
	adminUser     = "admin"
	adminPassword = "admin-password"
)

// StartRedisTLS starts a server for this test with a certificate for 127.0.0.1. The default user is
// off. One user has only the permissions of the given ACL rules, such as "~app:*", "+get". Another
// one has all permissions.
func StartRedisTLS(t testing.TB, aclRules ...string) *RedisTLS {
	t.Helper()
	r := startRedisTLS(t, aclRules)
	r.claim(t)
	return r
}

var sharedRedisTLS shared[RedisTLS]

// SharedRedisTLS returns a server like that of StartRedisTLS, which all tests of the process share,
// empty and with its statistics reset. All tests of a process must pass the same rules.
func SharedRedisTLS(t testing.TB, aclRules ...string) *RedisTLS {
	t.Helper()
	r := sharedRedisTLS.get(always, func() *RedisTLS { return startRedisTLS(t, aclRules) })
	clean(t, r.server, r.options(adminUser, adminPassword))
	return r
}

func startRedisTLS(t testing.TB, aclRules []string) *RedisTLS {
	t.Helper()
	path := program(t, "redis-server", "redis-server")
	r := &RedisTLS{Username: "app", Password: "app-password"}
	r.server = startServer(t, "tls", func(s *server) {
		r.Addr, r.server = s.addr(), s
		r.writeCertificates(t)
		s.argv = []string{path,
			"--port", "0",
			"--tls-port", strconv.Itoa(s.port),
			"--bind", "127.0.0.1",
			"--tls-ca-cert-file", r.CAFile,
			"--tls-cert-file", filepath.Join(s.dir, "server.pem"),
			"--tls-key-file", filepath.Join(s.dir, "server.key"),
			"--tls-auth-clients", "no",
			"--dir", s.dir,
			"--save", "",
			"--appendonly", "no",
			"--tcp-backlog", "128",
			"--enable-debug-command", "yes",
			"--user", "default", "off",
			"--user", adminUser, "on", ">" + adminPassword, "~*", "&*", "+@all",
			"--user", r.Username, "on", ">" + r.Password,
		}
		s.argv = append(s.argv, aclRules...)
		s.ready = func() error { return redisReady(s, r.options(adminUser, adminPassword)) }
	})
	return r
}

// writeCertificates creates a certificate authority and a server certificate in the server's
// folder.
func (r *RedisTLS) writeCertificates(t testing.TB) {
	t.Helper()
	r.roots = Certificates(t, r.dir)
	r.CAFile = filepath.Join(r.dir, "ca.pem")
}

// Certificates creates the files ca.pem, server.pem and server.key in a folder, for a server on
// 127.0.0.1, and returns the root certificates for its clients. They are valid for 24 hours.
func Certificates(t testing.TB, dir string) *x509.CertPool {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, kind string, der []byte) {
		t.Helper()
		must(os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}

	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "testenv authority"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	must(err)
	write("ca.pem", "CERTIFICATE", caDER)
	parsed, err := x509.ParseCertificate(caDER)
	must(err)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "testenv server"},
		NotBefore:    ca.NotBefore,
		NotAfter:     ca.NotAfter,
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certDER, err := x509.CreateCertificate(rand.Reader, cert, parsed, key.Public(), caKey)
	must(err)
	write("server.pem", "CERTIFICATE", certDER)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	write("server.key", "PRIVATE KEY", keyDER)
	return roots
}

// TLSConfig returns a new configuration that trusts the server.
func (r *RedisTLS) TLSConfig() *tls.Config {
	return &tls.Config{RootCAs: r.roots, MinVersion: tls.VersionTLS12}
}

// Options returns new options for a client with the restricted user.
func (r *RedisTLS) Options() *redis.Options { return r.options(r.Username, r.Password) }

func (r *RedisTLS) options(username, password string) *redis.Options {
	return &redis.Options{
		Addr:                     r.Addr,
		Username:                 username,
		Password:                 password,
		TLSConfig:                r.TLSConfig(),
		PoolSize:                 poolSize,
		ReadTimeout:              Hang,
		WriteTimeout:             Hang,
		PoolTimeout:              Hang,
		MaintNotificationsConfig: noMaintenance(),
	}
}

// Client returns a client with the restricted user that is closed when the test ends.
func (r *RedisTLS) Client(t testing.TB) *redis.Client {
	t.Helper()
	return closed(t, redis.NewClient(r.Options()))
}

// AdminClient returns a client with all permissions that is closed when the test ends.
func (r *RedisTLS) AdminClient(t testing.TB) *redis.Client {
	t.Helper()
	return closed(t, redis.NewClient(r.options(adminUser, adminPassword)))
}
