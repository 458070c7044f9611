package address

import (
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"h": "h:2181", "h:1": "h:1", "zk-1.example.com:65535": "zk-1.example.com:65535", "a_b.c.": "a_b.c.:2181", "10.0.0.1": "10.0.0.1:2181", "10.0.0.1:2": "10.0.0.1:2",
		"::1": "[::1]:2181", "[::1]": "[::1]:2181", "[::1]:3": "[::1]:3", "fe80::1%eth0": "[fe80::1%eth0]:2181", "[fe80::1%eth0]:3": "[fe80::1%eth0]:3",
		"::ffff:10.0.0.1": "[::ffff:10.0.0.1]:2181", "::1:2181": "[::1:2181]:2181", ":5": ":5", "bücher.example": "bücher.example:2181", "3com.com": "3com.com:2181",
	} {
		if got, err := HostPort(address, "2181"); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", address, got, err, want)
		}
	}
	for address, want := range map[string]string{
		"": "empty", " ": "white space", " h:2181": "white space", "h:2181 ": "the port", "h :1": "white space", "h\n": "white space", "a b:1": "white space",
		"h:2181/app": "path", "h/app": "path", "/var/run/x": "path", "tcp://h:1": "URL", "a:2181,b:2181": "several servers", "a,b": "several servers",
		"h:": "the port is missing", "h:abc": "the port", "h:http": "the port", "h:0": "the port", "h:65536": "the port", "h:-1": "the port", "h:+1": "the port", "h:1 ": "the port", "h:١": "the port",
		"h:1:2": "colons", "2001:db8::g": "colons", "[h]:1": "brackets", "[h]": "brackets", "[]:1": "brackets", "[]": "brackets", "[::1": "host:port", "[::1]1": "host:port", "[10.0.0.1]:1": "brackets", "::1]": "colons",
		"user@h:1": "no '@'", "h?x:1": "no '?'", "h%a": "no '%'", "10.0.0.256": "neither", "10.0.0.1.2:3": "neither", "12": "neither", "a..b": "empty", ".": "empty", ".a": "empty", strings.Repeat("a", 254): "253",
	} {
		if got, err := HostPort(address, "2181"); got != "" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want %q", address, got, err, want)
		}
	}
	for _, address := range []string{"h", "::1", "[::1]", "10.0.0.1"} {
		if got, err := HostPort(address, ""); err == nil || !strings.Contains(err.Error(), "the port is missing") {
			t.Errorf("%q: %q, %v", address, got, err)
		}
	}
}
