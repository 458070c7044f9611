package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func init() {
	RegisterChild("echo", func() {
		fmt.Println(os.Getenv("GREETING"))
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Println("got", lines.Text())
		}
	})
	RegisterChild("fail", func() {
		fmt.Fprintln(os.Stderr, "failing as told")
		os.Exit(3)
	})
	RegisterChild("listen", func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(l.Addr())
		select {}
	})
}

func TestChildTalks(t *testing.T) {
	c := SpawnChild(t, "echo", "GREETING=hello")
	line := func(want string) {
		t.Helper()
		if got, err := c.ReadLine(Hang); got != want || err != nil {
			t.Fatalf("read %q, %v, want %q", got, err, want)
		}
	}
	line("hello")
	if _, err := c.ReadLine(10 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a line that was not written: %v", err)
	}
	io.WriteString(c.Stdin, "a\nb\n")
	line("got a")
	line("got b")
	c.Stdin.Close()
	if _, err := c.ReadLine(Hang); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	check(t, c.Wait())
}

func TestChildFailsOrIsKilled(t *testing.T) {
	if err := SpawnChild(t, "fail").Wait(); err == nil || !strings.Contains(err.Error(), "code 3") {
		t.Error(err)
	}
	c := SpawnChild(t, "listen")
	_, err := c.ReadLine(Hang)
	check(t, err)
	c.Kill()
	if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Error(err)
	}
}

// orphanVariable makes TestServersOfADeadProcess the process that has to die.
const orphanVariable = "TESTENV_ORPHAN"

func TestServersOfADeadProcess(t *testing.T) {
	if end := os.Getenv(orphanVariable); end != "" {
		r := SharedRedis(t)
		child, err := SpawnChild(t, "listen").ReadLine(Hang)
		check(t, err)
		r.Pause() // even a server that stands still must go
		fmt.Println("orphans", r.Addr, child, current.dir)
		if end == "panic" {
			go panic("as told")
		}
		select {}
	}
	program(t, "redis-server", "redis-server")
	for _, end := range []string{"kill", "panic"} {
		t.Run(end, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestServersOfADeadProcess$")
			cmd.Env = append(os.Environ(), orphanVariable+"="+end)
			out, err := cmd.StdoutPipe()
			check(t, err)
			check(t, cmd.Start())
			defer cmd.Wait()
			defer cmd.Process.Kill()
			var line string
			for lines := bufio.NewScanner(out); !strings.HasPrefix(line, "orphans ") && lines.Scan(); {
				line = lines.Text()
			}
			var server, child, dir string
			if _, err := fmt.Sscanf(line, "orphans %s %s %s", &server, &child, &dir); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if end == "kill" {
				for _, addr := range []string{server, child} {
					c, err := net.Dial("tcp", addr)
					check(t, err)
					c.Close()
				}
				cmd.Process.Kill()
			}
			check(t, eventually(func() error {
				for _, addr := range []string{server, child} {
					if c, err := net.Dial("tcp", addr); err == nil {
						c.Close()
						return fmt.Errorf("%s still listens", addr)
					}
				}
				if _, err := os.Stat(dir); err == nil {
					return fmt.Errorf("%s is still there", dir)
				}
				return nil
			}, Hang))
		})
	}
}
