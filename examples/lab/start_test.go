//go:build accept

package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestStart builds the program, measures the time until it serves the page, and then ends it as
// Ctrl-C does.
func TestStart(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "lab")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	took := startOnce(t, binary)
	t.Logf("from the start of the process to the page: %v", took)
	if took > 2*time.Second {
		t.Errorf("the page is served after %v, want 2s", took)
	}
}

func startOnce(t *testing.T, binary string) time.Duration {
	t.Helper()
	var stderr bytes.Buffer
	lab := exec.Command(binary, "-addr", "localhost:0")
	lab.Stderr = &stderr
	stdout, err := lab.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := home.FindString(line)
	response, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	took := time.Since(start)
	http.DefaultClient.CloseIdleConnections()
	if err != nil || response.StatusCode != http.StatusOK || !bytes.Contains(body, []byte("<title>Break a cache")) {
		t.Errorf("the page: %s, %v", response.Status, err)
	}
	stopped := time.Now()
	if err := lab.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := lab.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("it ends with %v and prints %q", err, stderr.String())
	}
	t.Logf("from Ctrl-C to the end: %v", time.Since(stopped))
	return took
}
