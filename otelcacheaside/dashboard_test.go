package otelcacheaside_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// dashboard is what Grafana reads of dashboard.json.
type dashboard struct {
	Title         string
	UID           string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		GridPos     struct{ H, W, X, Y int }
		Targets     []struct{ RefID, Expr string }
	}
}

func readDashboard(t testing.TB) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	check(t, err)
	check(t, json.Unmarshal(text, &d))
	return d
}

// expressions are those of all panels, with the variables filled in as Grafana does for "All".
func (d dashboard) expressions() (all map[string]string) {
	all = make(map[string]string)
	filled := strings.NewReplacer("$cache", ".*", "$loader", ".*", "$__rate_interval", "10s")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = filled.Replace(target.Expr)
		}
	}
	return all
}

var (
	metricName = regexp.MustCompile(`\b(cacheaside_[a-z_]+)\{([^}]*)\}`)
	labelName  = regexp.MustCompile(`([a-z_]+) *[!=]=?~?"`)
	grouping   = regexp.MustCompile(`by \(([^)]*)\)`)
)

// Every panel shows metrics that there are, by labels that they have. At full size
// (CACHEASIDE_ACCEPT=1) a Prometheus has data for all of them, too, which takes half a minute, and
// the package prometheus.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 30 || len(d.Panels) < 20 {
		t.Fatalf("%+v", d)
	}
	variables := make(map[string]bool)
	for _, v := range d.Templating.List {
		variables["$"+v.Name] = true
	}
	ids, taken := make(map[int]bool), make(map[[2]int]string)
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d, %q: two of one id, no title, or nothing to show", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q and %q are in the same place, or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			for _, v := range regexp.MustCompile(`\$[a-z_]+`).FindAllString(target.Expr, -1) {
				if !variables[v] && v != "$__rate_interval" {
					t.Errorf("%q: there is no variable %s", p.Title, v)
				}
			}
		}
	}
	if os.Getenv("CACHEASIDE_ACCEPT") != "" {
		t.Run("on Prometheus", onPrometheus)
	}
	x := newScene(t, "main")
	x.work(5)
	labels := make(map[string]map[string]bool) // of each metric
	for s := range x.scrape() {
		name, with, _ := strings.Cut(strings.TrimSuffix(s, "}"), "{")
		if labels[name] == nil {
			labels[name] = map[string]bool{"instance": true} // which Prometheus adds
		}
		for _, l := range labelName.FindAllStringSubmatch(with, -1) {
			labels[name][l[1]] = true
		}
	}
	for panel, expr := range d.expressions() {
		found := metricName.FindAllStringSubmatch(expr, -1)
		if len(found) == 0 {
			t.Errorf("%s shows none of our metrics: %s", panel, expr)
		}
		for _, m := range found {
			has := labels[m[1]]
			if has == nil {
				t.Errorf("%s: there is no %s", panel, m[1])
				continue
			}
			for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
				if !has[l[1]] {
					t.Errorf("%s: %s has no label %s", panel, m[1], l[1])
				}
			}
			for _, by := range grouping.FindAllStringSubmatch(expr, -1) {
				for l := range strings.SplitSeq(by[1], ",") {
					if l = strings.TrimSpace(l); !has[l] {
						t.Errorf("%s: %s has no label %s", panel, m[1], l)
					}
				}
			}
		}
	}
}

// onPrometheus has a Prometheus scrape the process under load: it has something to show for every
// panel.
func onPrometheus(t *testing.T) {
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("install the package prometheus: ", err)
	}
	x := newScene(t, "main")
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: cacheaside, metrics_path: /, static_configs: [{targets: [%q]}]}]\n", strings.TrimPrefix(x.server.URL, "http://"))
	check(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	at := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	server := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+at)
	check(t, server.Start())
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	for began := time.Now(); time.Since(began) < 20*time.Second; {
		x.work(10)
	}
	for panel, expr := range readDashboard(t).expressions() {
		if n, err := query(at, expr); err != nil || n == 0 {
			t.Errorf("%s: %d series, %v: %s", panel, n, err, expr)
		}
	}
}

// query answers how many series an expression gives now that have a value.
func query(at, expr string) (n int, err error) {
	r, err := http.Get("http://" + at + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Value []any } }
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s", answer.Error)
	}
	for _, s := range answer.Data.Result {
		if len(s.Value) == 2 && s.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}
