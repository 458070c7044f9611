// Package address checks the addresses of servers in options, so that an address that cannot work
// is refused immediately, with the reason.
package address

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// ErrPostgres says why a connection string of PostgreSQL may be invalid. It replaces the error of
// pgx, which can contain parts of the password.
var ErrPostgres = errors.New(
	"cannot be read: in a URL, a special character of the password is written as %XX, such as %2F for /; in " +
		"key=value pairs, a value with spaces is in single quotes; or sslmode, a certificate, the service file or a " +
		"PG* variable of the environment is wrong")

// HostPort returns an address in the form host:port. If the address has no port, HostPort adds
// port, or returns an error if port is "". An IPv6 address with a port must be in brackets, as in
// "[::1]:2181"; without a port, the brackets are optional. The error contains the address and the
// reason.
func HostPort(address, port string) (string, error) {
	host, p, err := split(address, port)
	if err == nil {
		err = checkHost(host)
	}
	if err == nil {
		err = checkPort(p)
	}
	if err != nil {
		return "", fmt.Errorf("address %q: %w", address, err)
	}
	return net.JoinHostPort(host, p), nil
}

func split(address, port string) (host, p string, err error) {
	bare, closed := strings.CutSuffix(address, "]")
	switch {
	case address == "":
		return "", "", errors.New("it is empty")
	case strings.Contains(address, ","):
		return "", "", errors.New("it lists several servers; give each as a separate address")
	case strings.Contains(address, "://"):
		return "", "", errors.New("it is a URL; give host:port")
	case strings.Contains(address, "/"):
		return "", "", errors.New("it has a path; give host:port")
	case closed && strings.HasPrefix(bare, "["):
		return bare[1:], port, checkIPv6(bare[1:])
	case isIPv6(address), !strings.Contains(address, ":"):
		return address, port, nil
	case !strings.HasPrefix(address, "[") && strings.Count(address, ":") > 1:
		return "", "", errors.New("it has several colons; write an IPv6 address in brackets, as [::1]:2181")
	}
	if host, p, err = net.SplitHostPort(address); err != nil {
		return "", "", errors.New("it is not host:port")
	}
	if strings.HasPrefix(address, "[") {
		err = checkIPv6(host)
	}
	return host, p, err
}

func isIPv6(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Is6()
}

func checkIPv6(host string) error {
	if !isIPv6(host) {
		return errors.New("the text in brackets is not an IPv6 address")
	}
	return nil
}

// checkHost checks a host name or an IP address. It accepts an empty host, which means this
// machine.
func checkHost(host string) error {
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return nil
	}
	for _, c := range host {
		switch {
		case c <= ' ' || c == 0x7f:
			return errors.New("it contains white space or a control character")
		case c < 0x80 && !strings.ContainsRune("-_.", c) && !isAlphanumeric(byte(c)):
			return fmt.Errorf("a host name has no %q", c)
		}
	}
	name := strings.TrimSuffix(host, ".")
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case len(name) > 253:
		return errors.New("a host name has at most 253 bytes")
	case last == "" || strings.Contains(name, "..") || strings.HasPrefix(name, "."):
		return errors.New("a part of the host name is empty")
	case strings.Trim(last, "0123456789") == "":
		return errors.New("the host is neither a name nor an IP address")
	}
	return nil
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

func checkPort(port string) error {
	if port == "" {
		return errors.New("the port is missing")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port %q is not a number from 1 to 65535", port)
	}
	return nil
}
