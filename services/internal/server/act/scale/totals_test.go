package scale

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/externalmetric"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// byURL lets the group scale by a number from a URL, from 0.
func (s *scalingStage) byURL(url string, metrics ...config.ScalingMetric) {
	least := 0
	policy := *s.group.Scaling
	policy.Min = &least
	policy.Metrics = append(metrics,
		config.ScalingMetric{URL: &config.ScalingURL{Name: "waiting", URL: url, Target: 30}})
	s.group.Scaling = &policy
	s.configure()
	env, _ := tasks.Real()
	s.Env.ForEach = env.ForEach
}

// alert returns the text of the alert of the group, or "".
func (s *scalingStage) alert() string {
	view, _ := s.State.GroupView(s.group.GroupKey)
	if s.alerts() == 0 || view.Scaled == nil {
		return ""
	}
	return view.Scaled.Problem
}

func constant(value float64) func(context.Context, config.ScalingMetric) (float64, error) {
	return func(context.Context, config.ScalingMetric) (float64, error) { return value, nil }
}

// TestFromZero checks that a group without instances grows with a number from a URL, and returns to zero.
func TestFromZero(t *testing.T) {
	s := newScalingStage(t, 0)
	s.byURL("https://jobs.example/waiting", config.ScalingMetric{CPU: &config.ScalingShare{Target: "50%"}})
	s.Read = constant(0)
	s.play(0, time.Minute)
	if len(s.resized) != 0 || s.alerts() != 0 {
		t.Fatalf("with nothing to do: sizes %v, alert %q", s.resized, s.alert())
	}
	s.Read = constant(120)
	for range 3 {
		s.play(0, plan.ScalingEvery)
		for len(s.streams) < s.group.Size {
			s.add()
		}
	}
	if s.group.Size != 4 {
		t.Fatalf("with 120 waiting: sizes %v", s.resized)
	}
	if text := s.events[2].Message; !strings.HasPrefix(text,
		"size 4 instead of 2: waiting is 120 in total, with a target of 30 for each, which asks for 4") {
		t.Error(text)
	}
	s.Read = constant(0)
	s.play(0, 4*time.Minute)
	if s.group.Size != 4 {
		t.Fatalf("within the window: sizes %v", s.resized)
	}
	s.play(0, 10*time.Minute)
	if s.group.Size != 0 {
		t.Fatalf("with nothing waiting: sizes %v", s.resized)
	}
}

// TestBadAnswers checks that no answer of a URL but a sound number changes a size, and that the alert says why.
func TestBadAnswers(t *testing.T) {
	series := func(values ...string) string {
		return `{"status": "success", "data": {"resultType": "vector", "result": [` + strings.Join(values, ",") + `]}}`
	}
	value := func(v string) string { return `{"metric": {}, "value": [1, "` + v + `"]}` }
	for name, test := range map[string]struct{ body, problem string }{
		"NaN":               {series(value("NaN")), "the number is NaN"},
		"Inf":               {series(value("+Inf")), "the number is +Inf"},
		"negative":          {series(value("-5")), "the number is -5, which is negative"},
		"too large":         {series(value("1e13")), "the number is 1e+13, which is more than"},
		"two series":        {series(value("5"), value("6")), "the result has 2 series"},
		"no series":         {series(), "the result has no series"},
		"HTML":              {"<!doctype html>", "the answer is not"},
		"10 MiB":            {strings.Repeat(" ", 10<<20) + "900", "the answer is longer than"},
		"no such value":     {`{"other": 900}`, `no value at "/waiting"`},
		"a text":            {`{"waiting": "900"}`, "is a text and not a number"},
		"wrong token":       {"401", `"401 Unauthorized": the secret jobs must hold a token`},
		"forbidden":         {"403", `"403 Forbidden": the secret jobs must hold a token`},
		"redirect":          {"302", "redirects: configure the URL"},
		"closed connection": {"", "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch test.body {
				case "401":
					w.WriteHeader(http.StatusUnauthorized)
				case "403":
					w.WriteHeader(http.StatusForbidden)
				case "302":
					http.Redirect(w, r, "/elsewhere", http.StatusFound)
				case "":
					panic(http.ErrAbortHandler)
				default:
					_, _ = w.Write([]byte(test.body))
				}
			}))
			defer server.Close()
			s := newScalingStage(t, 4)
			s.byURL(server.URL)
			m := &s.group.Scaling.Metrics[0]
			token := &config.TokenSource{Kind: "secret", Source: "jobs"}
			if strings.Contains(test.body, "status") {
				*m = config.ScalingMetric{Query: &config.ScalingQuery{Prometheus: server.URL, Query: "a", Target: 1}}
			} else {
				m.URL.JSON, m.URL.Token = "/waiting", token
			}
			s.configure()
			reader := externalmetric.New(func(context.Context, string) ([]byte, error) { return []byte("hidden"), nil })
			defer reader.Close()
			s.Read = reader.Read
			s.play(0.5, 6*time.Minute)
			if got := s.alert(); len(s.resized) != 0 || !strings.Contains(got, test.problem) || !strings.HasPrefix(got,
				m.Name()+" cannot be read from "+server.URL) || strings.Contains(got, "hidden") {
				t.Errorf("sizes %v, alert %q", s.resized, got)
			}
			s.Read = constant(120)
			s.play(0.5, plan.ScalingEvery)
			if s.alerts() != 0 {
				t.Errorf("the alert did not end: %q", s.alert())
			}
		})
	}
}

// TestTenantsURLIsNotRead checks that the leader reads no URL of a dynamic group, even if it is stored.
func TestTenantsURLIsNotRead(t *testing.T) {
	s := newScalingStage(t, 4)
	s.group.Static = false
	s.byURL("https://jobs.example/waiting")
	s.Read = func(context.Context, config.ScalingMetric) (float64, error) {
		t.Error("the URL was read")
		return 900, nil
	}
	s.play(0.5, time.Minute)
	if got := s.alert(); len(s.resized) != 0 || got != "waiting is only for groups in the shard's configuration" {
		t.Errorf("sizes %v, alert %q", s.resized, got)
	}
}

// TestSlowURL checks that a URL that takes long delays no other group and no later pass, that it is not read twice at a
// time, and that what it tells is not used for another policy.
func TestSlowURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScalingStage(t, 4)
		s.byURL("https://jobs.example/waiting")
		slow := s.group
		quick := newScalingStage(t, 4).group
		quick.GroupKey.Group = "quick"
		s.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{
			slow.GroupKey: slow, quick.GroupKey: quick})
		var mu sync.Mutex
		began := time.Now()
		reading, reads, noted := false, []time.Duration{}, []time.Duration{}
		env, wait := tasks.Real()
		sleep := env.Sleep
		env.Sleep = func(ctx context.Context, d time.Duration) error {
			if view, ok := s.State.GroupView(quick.GroupKey); ok && view.Scaled != nil {
				noted = append(noted, time.Since(began))
			}
			return sleep(ctx, d)
		}
		s.Env = env
		s.Read = func(ctx context.Context, _ config.ScalingMetric) (float64, error) {
			mu.Lock()
			if reading {
				t.Error("the URL is read twice at a time")
			}
			reading, reads = true, append(reads, time.Since(began))
			mu.Unlock()
			if view, ok := s.State.GroupView(quick.GroupKey); !ok || view.Scaled == nil {
				t.Error("the other group waits for the URL")
			}
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				reading = false
			}()
			if err := sleep(ctx, 10*time.Second); err != nil {
				return 0, err
			}
			if len(reads) == 2 { // meanwhile the policy changes
				least := 0
				changed := slow
				changed.Scaling = &config.Scaling{Min: &least, Max: 30, Tolerance: "10%", Metrics: slow.Scaling.Metrics,
					Up: slow.Scaling.Up, Down: slow.Scaling.Down}
				s.State.ConfigureGroups(map[config.GroupKey]config.Group{slow.GroupKey: changed},
					[]config.GroupKey{slow.GroupKey})
				return 900, nil
			}
			return 0, errors.New("no answer")
		}
		ctx, stop := context.WithTimeout(t.Context(), 62*time.Second)
		defer stop()
		s.Run(ctx)
		wait()
		want := []time.Duration{15 * time.Second, 30 * time.Second, 45 * time.Second, time.Minute}
		if len(reads) != len(want) || len(s.resized) != 0 {
			t.Fatalf("reads after %v, sizes %v", reads, s.resized)
		}
		for i := range want {
			if reads[i] != want[i] {
				t.Errorf("reads after %v, want %v", reads, want)
			}
		}
	})
}
