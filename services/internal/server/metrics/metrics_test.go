package metrics_test

import (
	"cmp"
	"flag"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/operator"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

//go:generate go test -run ^TestReference$ . -update

var update = flag.Bool("update", false, "write the reference instead of comparing it")

// metric is the description of a metric.
type metric struct {
	name, help string
	labels     []string
}

// kind returns the type that the metric's name implies. TestKindsOfMetrics checks that this is the real type.
func (m metric) kind() dto.MetricType {
	switch {
	case strings.HasSuffix(m.name, "_total"):
		return dto.MetricType_COUNTER
	case strings.HasSuffix(m.name, "_duration_seconds"):
		return dto.MetricType_HISTOGRAM
	}
	return dto.MetricType_GAUGE
}

// program is a program and its own metrics.
type program struct {
	name, intro string
	metrics     []metric
}

// programs lists the programs that have metrics.
func programs() []program {
	server := metrics.NewServer("", "")
	server.WatchShard(func() metrics.Shard { return metrics.Shard{} })
	return []program{
		{"nstance-server", "The server answers `GET :8990/metrics` with its own metrics and those of the Go runtime " +
			"and the process. All of\nthem also have the labels `cluster` and `shard`. Only the leader has the " +
			"metrics of groups and alerts.",
			describe(server.Describe)},
		{"nstance-operator", "The operator has its metrics at `--metrics-bind-address`, beside those of " +
			"controller-runtime.",
			describe(operator.DescribeMetrics)},
		{"nstance-agent", "The agent answers `GET /metrics` at `NSTANCE_HEALTH_ADDR`, which is not set by " +
			"default.", agentMetrics()},
	}
}

func agentMetrics() (found []metric) {
	for _, m := range agent.Metrics() {
		found = append(found, metric{m.Name, m.Help, m.Labels})
	}
	return found
}

// describe returns the metrics of Nstance itself, sorted by name. It calls send to get the descriptions of all metrics.
func describe(send func(chan<- *prometheus.Desc)) (found []metric) {
	descs := make(chan *prometheus.Desc)
	go func() {
		send(descs)
		close(descs)
	}()
	// A Desc does not export its fields, so read them from its text.
	text := regexp.MustCompile(
		`^Desc\{fqName: (".*"), help: (".*"), unit: ".*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	for desc := range descs {
		fields := text.FindStringSubmatch(desc.String())
		if fields == nil {
			panic("a description of another form: " + desc.String())
		}
		name, _ := strconv.Unquote(fields[1]) // %q wrote it
		help, _ := strconv.Unquote(fields[2])
		if !strings.HasPrefix(name, "nstance_") {
			continue
		}
		var labels []string
		if fields[3] != "" {
			label, _, _ := strings.Cut(fields[3], "=")
			labels = append(labels, label)
		}
		if fields[4] != "" {
			labels = append(labels, strings.Split(fields[4], ",")...)
		}
		found = append(found, metric{name, help, labels})
	}
	slices.SortFunc(found, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	return found
}

// TestMetricsFollowConventions checks the metrics of every program with Prometheus' linter.
func TestMetricsFollowConventions(t *testing.T) {
	for _, program := range programs() {
		var families []*dto.MetricFamily
		for _, m := range program.metrics {
			sample := &dto.Metric{}
			for _, label := range m.labels {
				sample.Label = append(sample.Label, &dto.LabelPair{Name: new(label), Value: new("x")})
			}
			families = append(families, &dto.MetricFamily{Name: new(m.name), Help: new(m.help), Type: m.kind().Enum(),
				Metric: []*dto.Metric{sample}})
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range problems {
			t.Errorf("%s: %s: %s", program.name, problem.Metric, problem.Text)
		}
		if len(families) < 5 {
			t.Errorf("%s has %d metrics", program.name, len(families))
		}
	}
}

// TestKindsOfMetrics checks that the types of a server's metrics follow from their names, and that all have the labels
// cluster and shard.
func TestKindsOfMetrics(t *testing.T) {
	server := metrics.NewServer("v1", "a")
	server.SetCluster("example", "a")
	shard := metrics.Shard{Leads: true, Groups: make([]shardstate.GroupView, 1)}
	server.WatchShard(func() metrics.Shard { return shard })
	server.ObserveProvider("create", "ok", 1)
	server.ObserveStorage("get", "ok", 1)
	families, err := server.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, family := range families {
		name := family.GetName()
		for _, sample := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range sample.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["cluster"] != "example" || labels["shard"] != "a" {
				t.Errorf("%s has the labels %v, want cluster example and shard a", name, labels)
			}
		}
		if !strings.HasPrefix(name, "nstance_") {
			continue
		}
		seen++
		if want := (metric{name: name}).kind(); family.GetType() != want {
			t.Errorf("%s is a %s, and its name says %s", name, family.GetType(), want)
		}
	}
	if seen < 25 {
		t.Errorf("saw %d metrics", seen)
	}
}

const referencePage = "../../../../docs/reference/metrics.md"

// TestReference checks that docs/reference/metrics.md contains the text that the function reference returns.
func TestReference(t *testing.T) {
	want := reference()
	if *update {
		if err := os.WriteFile(referencePage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("%s differs from the code: run go generate ./services/internal/server/metrics", referencePage)
	}
}

// reference returns the Markdown text of docs/reference/metrics.md.
func reference() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated by "make generate" from the code. Do not edit. -->

# Metrics

Metrics with names that end in ` + "`_total`" + ` are counters, those that end in ` + "`_duration_seconds`" + `
are histograms, and all others are gauges. The value of a metric that ends in ` + "`_timestamp_seconds`" + `
is a Unix time. Labels have few values, and never name a single instance.
[Alerts](../runbooks/README.md) are made from these metrics.
`)
	for _, program := range programs() {
		b.WriteString("\n## " + program.name + "\n\n" + program.intro + "\n\n| metric | meaning |\n|---|---|\n")
		for _, m := range program.metrics {
			labels := ""
			if len(m.labels) > 0 {
				labels = "{" + strings.Join(m.labels, ",") + "}"
			}
			b.WriteString("| `" + m.name + labels + "` | " + m.help + " |\n")
		}
	}
	return b.String()
}
