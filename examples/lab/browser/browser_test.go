// Package browser tests the lab's page in a browser, as the people use it who look at it. It is a module of its own, for what drives the browser.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// picturesVariable, set to a folder, has the test keep pictures there.
const picturesVariable = "LAB_PICTURES"

// browserPath finds chromium, or ends the test with the reason that it cannot be run.
func browserPath(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const reason = "no chromium on this machine (Debian, Ubuntu: the package chromium)"
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip(reason)
	return ""
}

// startLab builds the lab, starts it, and returns its address. It must end cleanly with the test.
func startLab(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "lab")
	build := exec.Command("go", "build", "-C", "../../..", "-o", binary, "./examples/lab")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	window := "500ms"
	if os.Getenv(picturesVariable) != "" {
		window = "2s" // as usual
	}
	lab := exec.Command(binary, "-addr", "127.0.0.1:0", "-window", window)
	var stderr bytes.Buffer
	lab.Stderr = &stderr
	stdout, err := lab.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = lab.Process.Signal(syscall.SIGINT)
		if err := lab.Wait(); err != nil || stderr.Len() > 0 {
			t.Errorf("the lab ended with %v, and said %q", err, stderr.String())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(line)
	if address == "" {
		t.Fatalf("the lab says %q", line)
	}
	return address
}

// visit is a page in the browser, and what went wrong on it.
type visit struct {
	ctx  context.Context
	home string

	mu       sync.Mutex
	troubles []string
	requests int
}

// open starts the browser on the page.
func open(t *testing.T) *visit {
	t.Helper()
	path := browserPath(t)
	v := &visit{home: startLab(t)}
	folder, err := os.MkdirTemp("", "lab-browser")
	if err != nil {
		t.Fatal(err)
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(folder), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-default-apps", true), chromedp.Flag("disable-extensions", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.Env("HOME="+folder), chromedp.WindowSize(1280, 800))
	ctx, cancelPage := chromedp.NewContext(allocator)
	ctx, cancelTime := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(func() {
		cancelTime()
		_ = chromedp.Cancel(ctx)
		cancelPage()
		cancel()
		os.RemoveAll(folder)
	})
	v.ctx = ctx
	chromedp.ListenTarget(ctx, v.heard)
	err = chromedp.Run(ctx, network.Enable(), log.Enable(), runtime.Enable(), emulation.SetDeviceMetricsOverride(1280, 800, 1, false), chromedp.Navigate(v.home))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// heard notes errors of the page, and requests to anywhere else.
func (v *visit) heard(event any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
			v.troubles = append(v.troubles, fmt.Sprintf("console: %s (%s)", e.Entry.Text, e.Entry.URL))
		}
	case *runtime.EventExceptionThrown:
		v.troubles = append(v.troubles, "exception: "+e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		v.troubles = append(v.troubles, fmt.Sprintf("console: %s", e.Type))
	case *network.EventRequestWillBeSent:
		v.requests++
		if u, err := url.Parse(e.Request.URL); err != nil || u.Hostname() != "127.0.0.1" {
			v.troubles = append(v.troubles, "a request to "+e.Request.URL)
		}
	}
}

func (v *visit) run(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(v.ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// text returns what the page shows at a selector.
func (v *visit) text(t *testing.T, selector string) string {
	t.Helper()
	var text string
	v.run(t, chromedp.Evaluate(`(document.querySelector(`+strconv.Quote(selector)+`) || {textContent: ""}).textContent`, &text))
	return text
}

// click presses a button, wherever on the page it is.
func (v *visit) click(t *testing.T, selector string) {
	t.Helper()
	v.run(t, chromedp.ScrollIntoView(selector, chromedp.ByQuery), chromedp.Click(selector, chromedp.ByQuery))
}

// until waits for the page to show text that good accepts.
func (v *visit) until(t *testing.T, selector string, good func(string) bool) string {
	t.Helper()
	deadline := time.Now().Add(8 * time.Second)
	for {
		text := v.text(t, selector)
		if good(text) {
			return text
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s shows %q", selector, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// results waits for the lines of a switch that match re, beside the switch, and returns the number that re has found in each.
func (v *visit) results(t *testing.T, name, re string) (protected, plain int) {
	t.Helper()
	found := regexp.MustCompile(re)
	number := func(world string) int {
		text := v.until(t, fmt.Sprintf("[data-switch=%s] dd.%s", name, world), found.MatchString)
		n, err := strconv.Atoi(strings.ReplaceAll(found.FindStringSubmatch(text)[1], ",", ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, %s: %s", name, world, text)
		return n
	}
	return number("protected"), number("plain")
}

func (v *visit) wantsPictures() bool { return os.Getenv(picturesVariable) != "" }

// picture keeps what is to be seen, if pictures are wanted.
func (v *visit) picture(t *testing.T, name string, dark bool) {
	t.Helper()
	if !v.wantsPictures() {
		return
	}
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	var png []byte
	v.run(t,
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.Sleep(300*time.Millisecond), // the next frame is drawn in these colours
		chromedp.CaptureScreenshot(&png))
	png, err := smaller(png)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv(picturesVariable), name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}
