package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// told describes what the events, the web pages, the metrics, the alerts and doctor must show about one fault.
type told struct {
	// kind and cause are those of the expected event. Its message must contain text and rule.
	kind, cause, text, rule string
	instance                string // set by the story
	grouped                 bool   // it is an alert of the group
	// pages are pages of the shard that show the event's message and time.
	pages []string
	fleet string // a text that the page about all shards must show, instead of the event
	// metric is the name of a metric. A series of the metric must rise. If the name is followed by "{" and a label, a
	// series with that label must rise.
	metric string
	// alerts are the alert rules that must fire if the state after the fault lasts. An element is "RULE" or "RULE
	// KIND", where KIND is the alert's label "kind". doctor lists the checks of the command doctor that must find a
	// problem. An element is the beginning of a check's name.
	alerts, doctor []string

	event journalEvent
}

// answers is the part of nstance-admin's JSON output that the checks read.
type answers struct {
	Shards []struct {
		Events []journalEvent  // of events
		Errors []standingError // of explain and status
	}
}

type journalEvent struct {
	At             time.Time
	Kind           string
	ID             string `json:"instance_id"`
	Cause, Message string
}

type standingError struct {
	At            time.Time
	Kind, Message string
}

// admin runs nstance-admin and parses the JSON that it prints. Its exit status is ignored.
func admin[T any](ctx context.Context, s *story, args ...string) (value T, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.stack.Bin, "nstance-admin"), append(args, "-o", "json")...)
	cmd.Env = s.env("")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, _ := cmd.Output() // an error shows as missing output
	if err := json.Unmarshal(output, &value); err != nil {
		return value, fmt.Errorf("nstance-admin %s: %w: %s%s", args, err, output, &stderr)
	}
	return value, nil
}

// standing returns the active alerts in the output of a command, which is either status or explain.
func (s *story) standing(ctx context.Context, args ...string) ([]standingError, error) {
	answer, err := admin[answers](ctx, s, append(args, "--shard", local.Shard)...)
	if err != nil {
		return nil, err
	}
	return answer.Shards[0].Errors, nil
}

// awaitEvent waits for the event that t describes, if t has a kind. It takes the newest one after which no other follows
// within a second: two creations that fail at the same time raise an alert with two messages.
func (s *story) awaitEvent(ctx context.Context, t *told) error {
	pause := 200 * time.Millisecond
	for t.kind != "" {
		answer, err := admin[answers](ctx, s, "events", "--since", "1h", "--shard",
			local.Shard, "--kind", t.kind)
		if err != nil {
			return err
		}
		for _, e := range slices.Backward(answer.Shards[0].Events) {
			if e.Cause == t.cause && e.ID == t.instance && strings.Contains(e.Message, t.text) &&
				strings.Contains(e.Message, t.rule) {
				if t.event.At.Equal(e.At) && t.event.Message == e.Message {
					return nil
				}
				t.event, pause = e, time.Second
				break
			}
		}
		if err := local.Pause(ctx, pause); err != nil {
			return fmt.Errorf("no event %s with cause %q and %q: %w", t.kind, t.cause, t.text, err)
		}
	}
	return nil
}

// check returns an error unless all means of observation (events, pages, metrics and so on) show what t says about the
// fault.
func (s *story) check(ctx context.Context, t told) error {
	after, err := s.scrape(ctx)
	if err != nil {
		return err
	}
	errs := []error{s.checkMetric(t, after), s.checkRules(ctx, t, after), s.checkDoctor(ctx, t), s.checkPages(ctx, t)}
	if t.kind != "" {
		errs = append(errs, s.checkLog(t), s.checkExplain(ctx, t))
	}
	return errors.Join(errs...)
}

// checkLog looks for the line of the event, with the event's time, in the servers' logs.
func (s *story) checkLog(t told) error {
	type line struct {
		Msg, Kind, Instance, Cause, Reason string
		Time, At                           time.Time
	}
	want := line{Msg: "event", Kind: t.kind, Instance: t.instance, Cause: t.cause, Reason: t.event.Message}
	for n := 1; n <= servers; n++ {
		log, err := os.ReadFile(s.stack.LogFile(local.ServerName(n)))
		if err != nil {
			return err
		}
		for text := range bytes.Lines(log) {
			var have line
			if json.Unmarshal(text, &have) != nil || !have.At.Equal(t.event.At) {
				continue
			}
			if have.Time.Before(have.At) {
				return fmt.Errorf("log: a line of %v about an event at %v", have.Time, have.At)
			}
			if have.Time, have.At = (time.Time{}), (time.Time{}); have == want {
				return nil
			}
		}
	}
	return fmt.Errorf("log: no line %+v at %v", want, t.event.At)
}

// checkExplain looks for the alert that t describes, if t describes an alert. An alert of the group must be in the
// output of explain. An alert of the shard must be in the output of status.
func (s *story) checkExplain(ctx context.Context, t told) error {
	if t.kind != "alert_raised" {
		return nil
	}
	command := []string{"status"}
	if t.grouped {
		command = []string{"explain", "group", group}
	}
	standing, err := s.standing(ctx, command...)
	if err != nil {
		return err
	}
	for _, e := range standing {
		if e.Kind == t.cause && e.Message == t.event.Message && e.At.Equal(t.event.At) {
			return nil
		}
	}
	return fmt.Errorf("%s: no %s of %v: %q, there are: %+v", command, t.cause, t.event.At, t.event.Message, standing)
}

// checkDoctor verifies that doctor finds problems in exactly the checks that t.doctor lists.
func (s *story) checkDoctor(ctx context.Context, t told) error {
	type finding struct {
		Check, Status, Result, Next string
	}
	d, err := admin[struct{ Findings []finding }](ctx, s, "doctor", "--shard", local.Shard, "--storage-bucket",
		local.Bucket)
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, f := range d.Findings {
		if f.Status != "problem" {
			continue
		}
		n := slices.IndexFunc(t.doctor, func(check string) bool { return strings.HasPrefix(f.Check, check) })
		if n < 0 {
			return fmt.Errorf("doctor: unexpected problem: %+v", f)
		}
		found[t.doctor[n]] = true
		if strings.HasPrefix(f.Check, "alert "+t.cause) && t.kind == "alert_raised" &&
			(!strings.Contains(f.Result, t.event.Message) ||
				!strings.Contains(f.Result, t.event.At.UTC().Format("2006-01-02T15:04:05Z"))) {
			return fmt.Errorf("doctor: %+v, want %q at %v", f, t.event.Message, t.event.At)
		}
	}
	if len(found) != len(t.doctor) {
		return fmt.Errorf("doctor: problems of %v, want %q", slices.Sorted(maps.Keys(found)), t.doctor)
	}
	return nil
}

// checkPages waits until the web pages show the event's message with its time.
func (s *story) checkPages(ctx context.Context, t told) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	base := strings.TrimSuffix(s.stack.PageURL(), "/")
	if t.fleet != "" {
		return s.awaitText(ctx, base+"/", t.fleet, "No answer")
	}
	stamp := `datetime="` + t.event.At.UTC().Format("2006-01-02T15:04:05.000Z") + `"`
	query := url.Values{"shard": {local.Shard}, "kind": {t.kind}}
	if err := s.awaitText(ctx, base+"/events?"+query.Encode(), stamp, t.event.Message); err != nil {
		return err
	}
	for _, page := range t.pages {
		texts := []string{stamp, t.event.Message}
		if t.kind == "leader_started" { // the page of a shard shows the leader, not since when
			texts = []string{strings.TrimPrefix(strings.Split(t.event.Message, ",")[0], "server ")}
		}
		path := base + "/shards/" + local.Shard + "/" + strings.ReplaceAll(page, "$INSTANCE", t.instance)
		if err := s.awaitText(ctx, strings.TrimSuffix(path, "/"), texts...); err != nil {
			return err
		}
	}
	return nil
}

// awaitText waits until a web page shows all texts.
func (s *story) awaitText(ctx context.Context, address string, texts ...string) error {
	for {
		body, err := get(ctx, address)
		if err != nil {
			return err
		}
		missing := slices.DeleteFunc(slices.Clone(texts), func(text string) bool {
			return strings.Contains(html.UnescapeString(body), text)
		})
		if len(missing) == 0 {
			return nil
		}
		if err := local.Pause(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("page %s: %q is missing in:\n%s", address, missing, body)
		}
	}
}

func get(ctx context.Context, address string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// samples are the values of series by their names with labels.
type samples map[string]float64

// scrape reads the metrics of the servers that run. Like Prometheus, it adds a label with the name of the server.
func (s *story) scrape(ctx context.Context) (samples, error) {
	all := samples{}
	for n := 1; n <= servers; n++ {
		if !s.servers[n].Running() {
			continue
		}
		text, err := get(ctx, s.stack.URL(n, "/metrics"))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			series, number, ok := strings.Cut(strings.TrimSpace(line), "} ")
			value, err := strconv.ParseFloat(number, 64)
			if !ok || err != nil || !strings.HasPrefix(series, "nstance_") || strings.Contains(series, "_bucket{") {
				continue
			}
			all[series+`,instance="`+strconv.Itoa(n)+`"}`] = value
		}
	}
	return all, nil
}

// checkMetric checks that a series of the metric has grown.
func (s *story) checkMetric(t told, after samples) error {
	name, label, _ := strings.Cut(t.metric, "{")
	for series, value := range after {
		if strings.HasPrefix(series, name+"{") && strings.Contains(series, label) && value > s.scraped[series] {
			return nil
		}
	}
	if t.metric == "" {
		return nil
	}
	return fmt.Errorf("metrics: no series of %s has grown", t.metric)
}

// checkRules makes promtool evaluate the alert rules on the metrics before and after the fault. It pretends that the
// state after the fault lasted for more than half an hour. Exactly the expected alerts must fire.
func (s *story) checkRules(ctx context.Context, t told, after samples) error {
	rules, err := filepath.Abs("config/prometheus/nstance.rules.yaml")
	if err != nil {
		return err
	}
	type series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	type sample struct {
		Labels string  `json:"labels"`
		Value  float64 `json:"value"`
	}
	values := func(all samples, name string, times int) string {
		if value, ok := all[name]; ok {
			return fmt.Sprintf("%vx%d", value, times)
		}
		return fmt.Sprintf("_x%d", times)
	}
	var input []series
	both := maps.Clone(s.scraped)
	maps.Copy(both, after)
	for name := range both {
		input = append(input, series{name, values(s.scraped, name, 10) + " " + values(after, name, 80)})
	}
	want := []sample{}
	for _, alert := range t.alerts {
		name, kind, _ := strings.Cut(alert, " ")
		labels := fmt.Sprintf("{alertname=%q}", name)
		if kind != "" {
			labels = fmt.Sprintf("{alertname=%q, kind=%q}", name, kind)
		}
		want = append(want, sample{labels, 1})
	}
	test := map[string]any{"rule_files": []string{rules}, "evaluation_interval": "30s", "tests": []any{map[string]any{
		"interval": "30s", "input_series": input, "promql_expr_test": []any{map[string]any{
			"expr":      `count by (alertname, kind) (ALERTS{alertstate="firing"})`,
			"eval_time": "40m", "exp_samples": want}}}}}
	body, err := json.Marshal(test)
	if err != nil {
		return err
	}
	path := s.file("rules_test.yaml")
	if err := os.WriteFile(path, body, 0o600); err != nil { // JSON is YAML
		return err
	}
	if output, err := exec.CommandContext(ctx, *promtoolFlag, "test", "rules", path).CombinedOutput(); err != nil {
		return fmt.Errorf("alert rules: %w: %s", err, output)
	}
	return nil
}
