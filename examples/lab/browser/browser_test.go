// Package browser tests the lab's page in a browser. It is a separate module because of its
// dependencies.
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
	"sync/atomic"
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

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built.Load() {
			if binary, err := build(); err == nil {
				os.RemoveAll(filepath.Dir(binary))
			}
		}
		os.Exit(code)
	}))
}

var built atomic.Bool

// build builds the lab once for all tests.
var build = sync.OnceValues(func() (binary string, err error) {
	built.Store(true)
	folder, err := os.MkdirTemp("", "lab")
	if err != nil {
		return "", err
	}
	binary = filepath.Join(folder, "lab")
	cmd := exec.Command("go", "build", "-C", "../../..", "-trimpath", "-o", binary, "./examples/lab")
	// The lab belongs to a different module than this test.
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return binary, nil
})

// hang limits the wait for the page. Even a busy machine needs less.
const hang = time.Minute

// picturesVariable names the folder in which the test saves pictures.
const picturesVariable = "LAB_PICTURES"

// browserPath returns the path of chromium, or skips the test.
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

// startLab starts the lab with these flags and returns its address. The lab must end cleanly with
// the test.
func startLab(t *testing.T, flags ...string) string {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	window := "500ms"
	if os.Getenv(picturesVariable) != "" {
		window = "2s" // the default
	}
	lab := exec.Command(binary, append([]string{"-addr", "127.0.0.1:0", "-window", window}, flags...)...)
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
			t.Errorf("the lab ends with %v and prints %q", err, stderr.String())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(line)
	if address == "" {
		t.Fatalf("the lab prints %q", line)
	}
	return address
}

// visit is a page in the browser, with its errors.
type visit struct {
	ctx  context.Context
	home string

	mu       sync.Mutex
	troubles []string
	requests int
}

// open starts a lab with these flags and opens its page in the browser.
func open(t *testing.T, flags ...string) *visit {
	t.Helper()
	path := browserPath(t)
	v := &visit{home: startLab(t, flags...)}
	folder, err := os.MkdirTemp("", "lab-browser")
	if err != nil {
		t.Fatal(err)
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(folder), chromedp.Headless, chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-default-apps", true), chromedp.Flag("disable-extensions", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.Env("HOME="+folder), chromedp.WindowSize(1280, 800), chromedp.WSURLReadTimeout(hang))
	ctx, cancelPage := chromedp.NewContext(allocator)
	ctx, cancelTime := context.WithTimeout(ctx, 5*hang)
	t.Cleanup(func() {
		cancelTime()
		_ = chromedp.Cancel(ctx)
		cancelPage()
		cancel()
		os.RemoveAll(folder)
	})
	v.ctx = ctx
	chromedp.ListenTarget(ctx, v.heard)
	err = chromedp.Run(ctx, network.Enable(), log.Enable(), runtime.Enable(),
		emulation.SetDeviceMetricsOverride(1280, 800, 1, false), chromedp.Navigate(v.home))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// heard records errors of the page, and requests to other servers.
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

// text returns the text of an element.
func (v *visit) text(t *testing.T, selector string) string {
	t.Helper()
	var text string
	v.run(t, chromedp.Evaluate(`(document.querySelector(`+strconv.Quote(selector)+
		`) || {textContent: ""}).textContent`, &text))
	return text
}

// click presses a button anywhere on the page.
func (v *visit) click(t *testing.T, selector string) {
	t.Helper()
	v.run(t, chromedp.ScrollIntoView(selector, chromedp.ByQuery), chromedp.Click(selector, chromedp.ByQuery))
}

// until waits until the text of an element satisfies good.
func (v *visit) until(t *testing.T, selector string, good func(string) bool) string {
	t.Helper()
	deadline := time.Now().Add(hang)
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

// results waits for the lines next to a switch that match re, and returns the number that re finds
// in each.
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

// done waits until the line next to a switch reports, in protected, the result of the measurement.
func (v *visit) done(t *testing.T, name, line string) {
	t.Helper()
	v.until(t, fmt.Sprintf("[data-switch=%s] dd.protected", name),
		func(s string) bool { return strings.HasPrefix(s, line+" In the first") })
}

// number evaluates an expression in the page.
func (v *visit) number(t *testing.T, expression string) (n int) {
	t.Helper()
	v.run(t, chromedp.Evaluate(expression, &n))
	return n
}

// end fails the test if errors occurred on the page.
func (v *visit) end(t *testing.T) {
	t.Helper()
	v.until(t, "#status", running)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, trouble := range v.troubles {
		t.Error(trouble)
	}
	if v.requests < 4 {
		t.Errorf("only %d requests were seen", v.requests)
	}
}

func running(s string) bool { return strings.HasPrefix(s, "running") }

func (v *visit) wantsPictures() bool { return os.Getenv(picturesVariable) != "" }

// picture saves a screenshot if pictures are wanted.
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
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme",
			Value: scheme}}),
		chromedp.Sleep(300*time.Millisecond), // the next frame has these colours
		chromedp.CaptureScreenshot(&png))
	png, err := smaller(png)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv(picturesVariable), name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}
