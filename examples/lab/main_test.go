package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var home = regexp.MustCompile(`http://127\.0\.0\.1:\d+/`)

// TestRun serves on another port if the port is taken, and leaves no goroutine behind although a
// viewer is connected.
func TestRun(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, taken.Addr().String(), usual, in)
		in.CloseWithError(io.EOF)
		ended <- err
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := home.FindString(line)
	if address == "" || strings.Contains(address, taken.Addr().String()+"/") {
		t.Fatalf("it prints %q although %s was taken", line, taken.Addr())
	}
	client := &http.Client{}
	defer client.CloseIdleConnections()
	response, err := client.Get(address + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := testenv.Receive(t, "the end", ended); err != nil {
		t.Error(err)
	}
}

func TestFlags(t *testing.T) {
	var help bytes.Buffer
	if _, _, err := parse([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) ||
		!strings.Contains(help.String(), "-addr") || !strings.Contains(help.String(), "-window") {
		t.Errorf("error %v, and %q", err, help.String())
	}
	for _, bad := range [][]string{{"-addr", "0.0.0.0:8080"}, {"-addr", ":8080"}, {"-addr", "127.0.0.1"},
		{"-addr", "127.0.0.1:http"}, {"-addr", "127.0.0.1:65536"}, {"-addr", "[::]:1"}, {"-window", "0s"}, {"-window", "1h"}, {"-patience", "1ms"}, {"-redis-timeout", "1m"}, {"more"}, {"-unknown"}} {
		if _, _, err := parse(bad, io.Discard); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	if address, c, err := parse(nil, io.Discard); err != nil || address != "127.0.0.1:8080" || c != usual {
		t.Errorf("%q, %+v, %v", address, c, err)
	}
}
