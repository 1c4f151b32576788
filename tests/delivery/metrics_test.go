package delivery

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	_ "sigs.k8s.io/controller-runtime/pkg/controller" // registers the metrics of reconcilers
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"
)

const chart = "../../services/operator/chart"

// expression is one query and its location.
type expression struct{ where, text string }

// TestMetricsExist checks that every metric in dashboards and alerts exists. It must come from Nstance, from
// controller-runtime, or from a collector that controller-runtime registers.
func TestMetricsExist(t *testing.T) {
	ours := quotedMetrics(t)
	expressions := append(dashboardExpressions(t), ruleExpressions(t)...)
	if len(expressions) < 40 {
		t.Fatalf("found %d expressions", len(expressions))
	}
	name := regexp.MustCompile(`\b[a-z][a-z0-9]*(_[a-z0-9]+)+\b`)
	quoted := regexp.MustCompile(`"[^"]*"|\$__[a-z_]+|by \([^)]*\)`)
	seen := map[string]bool{}
	for _, e := range expressions {
		for _, metric := range name.FindAllString(quoted.ReplaceAllString(e.text, ""), -1) {
			if slices.Contains([]string{"histogram_quantile", "label_values", "clamp_min"}, metric) {
				continue
			}
			seen[metric] = true
			if !registered(metric) && !ours[metric] {
				t.Errorf("%s: nothing measures %s", e.where, metric)
			}
		}
	}
	for _, want := range []string{"leader_election_master_status", "nstance_leader",
		"nstance_operator_shard_reachable"} {
		if !seen[want] {
			t.Errorf("no expression uses %s: is it read at all?", want)
		}
	}
	if registered("workqueue_width") || !registered("workqueue_depth") ||
		!registered("controller_runtime_reconcile_time_seconds_bucket") {
		t.Error("the check of registered metrics does not tell them apart")
	}
}

// registered reports whether controller-runtime, the Go collector or the process collector registers a metric. It tries
// to register another metric with the same name. This attempt fails if the name is registered.
func registered(name string) bool {
	for _, base := range []string{name, trimHistogram(name)} {
		probe := prometheus.NewGauge(prometheus.GaugeOpts{Name: base, Help: "a probe"})
		if metrics.Registry.Register(probe) != nil {
			return true
		}
		metrics.Registry.Unregister(probe)
	}
	return false
}

func trimHistogram(name string) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, found := strings.CutSuffix(name, suffix); found {
			return base
		}
	}
	return name
}

// quotedMetrics returns the metric names in the source code, including the series names that a histogram adds.
func quotedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	quoted := regexp.MustCompile(`"(nstance_[a-z_]+)"`)
	err := filepath.WalkDir("../../services/internal", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, match := range quoted.FindAllStringSubmatch(string(raw), -1) {
			for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
				names[match[1]+suffix] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func dashboardExpressions(t *testing.T) (found []expression) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(chart, "dashboards", "*.json"))
	if err != nil || len(paths) < 2 {
		t.Fatalf("dashboards %v, %v", paths, err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct {
			UID        string `json:"uid"`
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
				GridPos struct {
					X, Y, W, H int
				} `json:"gridPos"`
				Targets []struct {
					Expr string `json:"expr"`
				} `json:"targets"`
			} `json:"panels"`
		}
		if err := json.Unmarshal(raw, &dashboard); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		variables := map[string]bool{}
		for _, variable := range dashboard.Templating.List {
			variables[variable.Name] = true
			found = append(found, expression{path + ", variable " + variable.Name, variable.Definition})
		}
		ids := map[int]bool{}
		for _, panel := range dashboard.Panels {
			if ids[panel.ID] {
				t.Errorf("%s: two panels have ID %d", path, panel.ID)
			}
			ids[panel.ID] = true
			if panel.GridPos.X+panel.GridPos.W > 24 {
				t.Errorf("%s: panel %q is wider than the page", path, panel.Title)
			}
			if panel.Type != "row" && len(panel.Targets) == 0 {
				t.Errorf("%s: panel %q asks for nothing", path, panel.Title)
			}
			for _, target := range panel.Targets {
				found = append(found, expression{path + ", panel " + panel.Title, target.Expr})
				for _, variable := range regexp.MustCompile(`\$([a-z]+)`).FindAllStringSubmatch(target.Expr, -1) {
					if !variables[variable[1]] {
						t.Errorf("%s: panel %q uses variable %s, which is not defined", path, panel.Title, variable[1])
					}
				}
			}
		}
	}
	return found
}

func ruleExpressions(t *testing.T) (found []expression) {
	t.Helper()
	path := filepath.Join(chart, "files", "rules.yaml")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert string `json:"alert"`
				Expr  string `json:"expr"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal(raw, &rules); err != nil {
		t.Fatal(err)
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			found = append(found, expression{path + ", alert " + rule.Alert, rule.Expr})
		}
	}
	return found
}
