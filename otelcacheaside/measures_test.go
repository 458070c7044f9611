package otelcacheaside

import (
	"flag"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Nothing that is counted is left out: what a Stats has gained is to be a metric, too.
func TestEveryCountIsAMetric(t *testing.T) {
	everyField(t, slices.Concat(loaderMeasures, cacheMeasures))
	everyField(t, filterMeasures)
	everyField(t, writerMeasures, "Relay")
	everyField(t, relayMeasures)
	everyField(t, meterMeasures, "Results")
	everyField(t, resultMeasures, "After")                                          // which is a label
	everyField(t, consumerMeasures, "Position", "Saved", "LastError", "WaitingFor") // texts
}

func everyField[S any](t *testing.T, measures []measure[S], but ...string) {
	t.Helper()
	names := make(map[string]int)
	for _, m := range measures {
		names[m.name]++
		if m.about == "" || m.about[len(m.about)-1] != '.' || m.unit == "" {
			t.Errorf("%s has no unit, or no description", m.name)
		}
		if names[m.name] > 1 && len(m.with) == 0 {
			t.Errorf("there are two %s", m.name)
		}
	}
	var of S
	for _, path := range fields(reflect.TypeOf(of), nil) {
		name := reflect.TypeOf(of).FieldByIndex(path).Name
		if slices.Contains(but, name) {
			continue
		}
		before := values(measures, &of)
		var changed S
		switch f := reflect.ValueOf(&changed).Elem().FieldByIndex(path); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(7 * time.Second))
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		default:
			t.Errorf("%s of a %T is a %s", name, of, f.Kind())
		}
		differ := 0
		for i, v := range values(measures, &changed) {
			if v != before[i] {
				differ++
			}
		}
		if differ != 1 {
			t.Errorf("%d metrics show %s of a %T", differ, name, of)
		}
	}
}

func fields(of reflect.Type, path []int) (all [][]int) {
	for i := range of.NumField() {
		f, at := of.Field(i), append(slices.Clone(path), i)
		if f.Type.Kind() == reflect.Struct && f.Name != "Relay" {
			all = append(all, fields(f.Type, at)...)
		} else {
			all = append(all, at)
		}
	}
	return all
}

func values[S any](measures []measure[S], s *S) []float64 {
	all := make([]float64, len(measures))
	for i, m := range measures {
		all[i] = m.of(s)
	}
	return all
}

var update = flag.Bool("update", false, "write the descriptions of the metrics into docs/guides/metrics.md")

// documented checks that a table of the page has each of these metrics with its description. With
// the flag -update it returns the page with the descriptions.
func documented[S any](t *testing.T, page string, measures []measure[S]) string {
	t.Helper()
	for _, m := range measures {
		row := regexp.MustCompile("(?m)^(\\| `cacheaside\\." + regexp.QuoteMeta(m.name) + "`.*\\| )(.*)( \\|)$")
		if *update {
			page = row.ReplaceAllString(page, "${1}"+strings.ReplaceAll(m.about, "$", "$$")+"${3}")
		}
		if found := row.FindStringSubmatch(page); found == nil || found[2] != m.about {
			t.Errorf("docs/guides/metrics.md does not list %s with the description %q (-update writes descriptions)",
				m.name, m.about)
		}
	}
	return page
}

// The documentation lists each metric and each kind of error.
func TestEveryMetricIsDocumented(t *testing.T) {
	const file = "../docs/guides/metrics.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := documented(t, string(text), slices.Concat(loaderMeasures, cacheMeasures))
	page = documented(t, page, filterMeasures)
	page = documented(t, page, writerMeasures)
	page = documented(t, page, relayMeasures)
	page = documented(t, page, consumerMeasures)
	page = documented(t, page, meterMeasures)
	page = documented(t, page, resultMeasures)
	page = documented(t, page, consistencyMeasures)
	for _, f := range failures {
		if !strings.Contains(page, "`"+f.name+"`") {
			t.Errorf("docs/guides/metrics.md does not list the error.type %s", f.name)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
