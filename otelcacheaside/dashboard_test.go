package otelcacheaside_test

import (
	"encoding/json"
	"errors"
	"fmt"
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
	metricName = regexp.MustCompile(`\b(cacheaside_[a-z_]+)(?:\{([^}]*)\})?`)
	labelName  = regexp.MustCompile(`([a-z_]+) *[!=]=?~?"`)
	grouping   = regexp.MustCompile(`(?:by|without) \(([^)]*)\)`)
)

// Every panel uses metrics and labels that exist. At full size (CACHEASIDE_ACCEPT=1) a real
// Prometheus also has data for all panels. That takes half a minute, and the package prometheus.
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
	checkExpressions(t, d.expressions())
}

// checkExpressions checks that the metrics and labels of PromQL expressions exist.
func checkExpressions(t *testing.T, expressions map[string]string) {
	t.Helper()
	x := newScene(t, "main")
	x.work(5)
	labels := make(map[string]map[string]bool) // by metric
	for s := range x.scrape() {
		name, with, _ := strings.Cut(strings.TrimSuffix(s, "}"), "{")
		if labels[name] == nil {
			labels[name] = map[string]bool{"instance": true, "job": true} // added by Prometheus
		}
		for _, l := range labelName.FindAllStringSubmatch(with, -1) {
			labels[name][l[1]] = true
		}
	}
	for name, expr := range expressions {
		found := metricName.FindAllStringSubmatch(grouping.ReplaceAllString(expr, ""), -1)
		if len(found) == 0 {
			t.Errorf("%s has no metric of the library: %s", name, expr)
		}
		for _, m := range found {
			has := labels[m[1]]
			if has == nil {
				t.Errorf("%s: there is no metric %s", name, m[1])
				continue
			}
			used := labelName.FindAllStringSubmatch(m[2], -1)
			for _, l := range used {
				if !has[l[1]] {
					t.Errorf("%s: %s has no label %s", name, m[1], l[1])
				}
			}
			for _, by := range grouping.FindAllStringSubmatch(expr, -1) {
				for l := range strings.SplitSeq(by[1], ",") {
					if l = strings.TrimSpace(l); !has[l] {
						t.Errorf("%s: %s has no label %s", name, m[1], l)
					}
				}
			}
		}
	}
}

var (
	alertName  = regexp.MustCompile(`- alert: (\w+)`)
	alertExpr  = regexp.MustCompile(`(?s) expr: (?:\|\n)?(.*?)\n +(?:for|labels):`)
	alertLabel = regexp.MustCompile(`\$labels\.(\w+)`)
)

// readAlerts returns the expressions of alerts.yaml by the names of the alerts, and the labels that
// their texts use.
func readAlerts(t *testing.T) (expressions map[string]string, labels map[string][]string) {
	t.Helper()
	text, err := os.ReadFile("alerts.yaml")
	check(t, err)
	expressions, labels = make(map[string]string), make(map[string][]string)
	for _, rule := range strings.Split(string(text), "      - alert: ")[1:] {
		name := alertName.FindStringSubmatch("- alert: " + rule)[1]
		expr := alertExpr.FindStringSubmatch(rule)
		if expr == nil || expressions[name] != "" {
			t.Fatalf("%s: no expression, or a second alert of this name", name)
		}
		expressions[name] = expr[1]
		for _, l := range alertLabel.FindAllStringSubmatch(rule, -1) {
			labels[name] = append(labels[name], l[1])
		}
	}
	return expressions, labels
}

// Every alert of alerts.yaml uses metrics and labels that exist. TestDashboard evaluates the rules
// in a real Prometheus at full size.
func TestAlerts(t *testing.T) {
	expressions, labels := readAlerts(t)
	if len(expressions) < 15 {
		t.Fatal(expressions)
	}
	for name, used := range labels {
		for _, label := range used {
			metrics := metricName.FindAllStringSubmatch(grouping.ReplaceAllString(expressions[name], ""), -1)
			expressions[name+": "+label] = fmt.Sprintf(`%s{%s=""}`, metrics[0][1], label)
		}
	}
	checkExpressions(t, expressions)
}

// onPrometheus runs a Prometheus that scrapes the process under load. Every panel has data, every
// alert can be evaluated, and the alert of failing loads is pending or firing.
func onPrometheus(t *testing.T) {
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("install the package prometheus: ", err)
	}
	promtool, err := exec.LookPath("promtool")
	check(t, err)
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules",
		"alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
	rules, err := filepath.Abs("alerts.yaml")
	check(t, err)
	x := newScene(t, "main")
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs: "+
		"[{job_name: cacheaside, metrics_path: /, static_configs: [{targets: [%q]}]}]\n", rules, strings.TrimPrefix(
		x.server.URL, "http://"))
	check(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	at := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	server := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+at)
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
	checkRules(t, at)
}

// checkRules checks the state of all rules of a Prometheus.
func checkRules(t *testing.T, at string) {
	t.Helper()
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError string }
			}
		}
	}
	check(t, get("http://"+at+"/api/v1/rules", &rules))
	states := make(map[string]string)
	for _, group := range rules.Data.Groups {
		for _, rule := range group.Rules {
			states[rule.Name] = rule.State
			if rule.Health != "ok" {
				t.Errorf("%s: %s: %s", rule.Name, rule.Health, rule.LastError)
			}
		}
	}
	if expressions, _ := readAlerts(t); len(states) != len(expressions) {
		t.Errorf("%d of %d rules", len(states), len(expressions))
	}
	if state := states["CacheasideLoadsFail"]; state != "pending" && state != "firing" {
		t.Errorf("a fifth of the loads fails, and the alert is %s", state)
	}
}

// get reads JSON from a URL.
func get(from string, into any) error {
	r, err := http.Get(from)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	return json.NewDecoder(r.Body).Decode(into)
}

// query returns the number of series with a value that an expression yields now.
func query(at, expr string) (n int, err error) {
	var reply struct {
		Status, Error string
		Data          struct{ Result []struct{ Value []any } }
	}
	if err := get("http://"+at+"/api/v1/query?query="+url.QueryEscape(expr), &reply); err != nil {
		return 0, err
	}
	if reply.Status != "success" {
		return 0, errors.New(reply.Error)
	}
	for _, s := range reply.Data.Result {
		if len(s.Value) == 2 && s.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}
