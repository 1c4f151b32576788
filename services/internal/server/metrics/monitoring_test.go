package metrics_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

const (
	root     = "../../../../"
	runbooks = "https://github.com/nstance-kit/nstance/blob/main/docs/runbooks/"
)

// rule is a recording or alert rule for Prometheus.
type rule struct {
	file        string
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Annotations map[string]string `yaml:"annotations"`
}

// rules returns the rules for servers and for the operator.
func rules(t *testing.T) (all []rule) {
	t.Helper()
	for _, file := range []string{"config/prometheus/nstance.rules.yaml", "services/operator/chart/files/rules.yaml"} {
		var document struct {
			Groups []struct {
				Rules []rule `yaml:"rules"`
			} `yaml:"groups"`
		}
		if err := yaml.Unmarshal(read(t, file), &document); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, group := range document.Groups {
			for _, r := range group.Rules {
				r.file = file
				all = append(all, r)
			}
		}
	}
	if len(all) < 15 {
		t.Fatalf("found %d rules", len(all))
	}
	return all
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	raw, err := os.ReadFile(root + file)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestExpressionsNameMetrics checks that all metrics and labels in rules and dashboards exist.
func TestExpressionsNameMetrics(t *testing.T) {
	expressions := map[string]string{}
	labels := map[string][]string{} // by series
	for _, program := range programs() {
		for _, m := range program.metrics {
			labels[m.name] = m.labels
			if strings.HasSuffix(m.name, "_duration_seconds") {
				for _, suffix := range []string{"_bucket", "_count", "_sum"} {
					labels[m.name+suffix] = append(slices.Clone(m.labels), "le")
				}
			}
		}
	}
	for _, r := range rules(t) {
		expressions[r.file+": "+r.Record+r.Alert] = r.Expr
		if r.Record != "" {
			by, _, _ := strings.Cut(r.Record, ":")
			labels[r.Record] = strings.Split(by, "_")
		}
	}
	dashboards, err := filepath.Glob(root + "config/grafana/*.json")
	if err != nil || len(dashboards) != 2 {
		t.Fatalf("dashboards %v, %v; want two", dashboards, err)
	}
	for _, file := range append(dashboards, root+"services/operator/chart/dashboards/nstance-operator.json") {
		for where, text := range dashboardExpressions(t, file) {
			expressions[where] = text
		}
	}
	name := regexp.MustCompile(`\b([a-z_]+:)?nstance_[a-z_]+(:[a-z0-9_]+)?\b`)
	selector := regexp.MustCompile(`\b((?:[a-z_]+:)?nstance_[a-z_]+(?::[a-z0-9_]+)?)\{([^}]*)\}`)
	label := regexp.MustCompile(`([a-z]+) ?(?:=~|!~|!=|=)`)
	common := []string{"cluster", "shard", "instance", "job", "namespace"}
	names := 0
	for where, text := range expressions {
		for _, metric := range name.FindAllString(text, -1) {
			names++
			if _, ok := labels[metric]; !ok {
				t.Errorf("%s: nothing measures %s", where, metric)
			}
		}
		for _, match := range selector.FindAllStringSubmatch(text, -1) {
			for _, l := range label.FindAllStringSubmatch(match[2], -1) {
				if !slices.Contains(common, l[1]) && !slices.Contains(labels[match[1]], l[1]) {
					t.Errorf("%s: %s has no label %s", where, match[1], l[1])
				}
			}
		}
	}
	if names < 100 {
		t.Errorf("found %d names of metrics", names)
	}
}

// dashboardExpressions returns the queries of a dashboard. The key of a query consists of the name of its panel and the
// letter of the query. dashboardExpressions checks that each panel has its own ID, and that queries use only variables
// that the dashboard defines.
func dashboardExpressions(t *testing.T, file string) map[string]string {
	t.Helper()
	var dashboard struct {
		Templating struct {
			List []struct {
				Name       string `json:"name"`
				Definition string `json:"definition"`
			} `json:"list"`
		} `json:"templating"`
		Panels []struct {
			ID      int    `json:"id"`
			Type    string `json:"type"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &dashboard); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	found, variables, ids := map[string]string{}, map[string]bool{}, map[int]bool{}
	for _, v := range dashboard.Templating.List {
		variables[v.Name] = true
		found[file+", variable "+v.Name] = v.Definition
	}
	used := regexp.MustCompile(`\$([a-z]+)`)
	for _, panel := range dashboard.Panels {
		where := file + ", panel " + panel.Title
		if ids[panel.ID] {
			t.Errorf("%s has the ID of another panel", where)
		}
		ids[panel.ID] = true
		for i, target := range panel.Targets {
			found[where+" "+string(rune('A'+i))] = target.Expr
			for _, v := range used.FindAllStringSubmatch(target.Expr, -1) {
				if !variables[v[1]] {
					t.Errorf("%s uses the variable %s, which is not defined", where, v[1])
				}
			}
		}
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("%s asks for nothing", where)
		}
	}
	return found
}

// TestAlertsHaveRunbooks checks that each alert of a leader and each alert rule has a runbook with all sections. The
// index of runbooks must list each alert rule and runbook. There must be no other runbooks.
func TestAlertsHaveRunbooks(t *testing.T) {
	pages := map[string]bool{}
	for _, kind := range plan.AlertKinds() {
		pages[string(kind)+".md"] = true
	}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		page, ok := strings.CutPrefix(r.Annotations["runbook_url"], runbooks)
		switch {
		case !ok:
			t.Errorf("%s: %s has the runbook %q, want one below %s", r.file, r.Alert, r.Annotations["runbook_url"],
				runbooks)
		case page != "{{ $labels.kind }}.md":
			pages[page] = true
		}
	}
	index := string(read(t, "docs/runbooks/README.md"))
	for page := range pages {
		text := string(read(t, "docs/runbooks/"+page))
		for _, section := range []string{"\n## Impact\n", "\n## Diagnosis\n", "\n```sh\n", "\n## Fix\n"} {
			if !strings.Contains(text, section) {
				t.Errorf("docs/runbooks/%s lacks %q", page, section)
			}
		}
		if !strings.Contains(index, "]("+page+")") {
			t.Errorf("docs/runbooks/README.md does not list %s", page)
		}
	}
	for _, r := range rules(t) {
		if r.Alert != "" && !strings.Contains(index, r.Alert) {
			t.Errorf("docs/runbooks/README.md does not list %s", r.Alert)
		}
	}
	files, err := filepath.Glob(root + "docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if base := filepath.Base(file); base != "README.md" && !pages[base] {
			t.Errorf("%s is the runbook of no alert", file)
		}
	}
}
