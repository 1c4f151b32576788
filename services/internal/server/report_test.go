package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// fakeMember records the reports to a scaling group, with the time since the start in seconds.
type fakeMember struct {
	began time.Time
	// awaited is the duration from the start of the test until the scaling group expects reports. Zero means that it
	// never does.
	awaited time.Duration
	reports []string
}

func (m *fakeMember) report(what string, err error) error {
	if err == nil {
		m.reports = append(m.reports, time.Since(m.began).String()+" "+what)
	}
	return err
}

func (m *fakeMember) launch() error {
	if m.awaited == 0 || time.Since(m.began) < m.awaited {
		return infra.ErrNotAwaited
	}
	return nil
}

func (m *fakeMember) MachineID() string             { return "i-1" }
func (m *fakeMember) Ready(context.Context) error   { return m.report("ready", m.launch()) }
func (m *fakeMember) Abandon(context.Context) error { return m.report("abandon", m.launch()) }
func (m *fakeMember) Replace(context.Context) error { return m.report("replace", nil) }

func TestHealthReport(t *testing.T) {
	unhealthy := errors.New("503 Service Unavailable: reading the configuration")
	for name, c := range map[string]struct {
		awaited     time.Duration
		ready, sick time.Duration // The server is healthy from ready until sick.
		want        []string
	}{
		"ready": {awaited: 1, ready: 12 * time.Second, sick: time.Hour,
			want: []string{"15s ready"}},
		"awaited after it is ready": {awaited: 8 * time.Second, sick: time.Hour, want: []string{"10s ready"}},
		"never awaited":             {sick: time.Hour},
		"never ready": {awaited: 1, ready: time.Hour, want: []string{"1m0s abandon", "1m5s replace",
			"1m10s replace"}},
		"restarted, never ready": {ready: time.Hour, want: []string{"1m5s replace", "1m10s replace"}},
		"ready, then unhealthy": {awaited: 1, sick: 10 * time.Second, want: []string{"5s ready", "1m5s replace",
			"1m10s replace"}},
		"unhealthy for a while": {awaited: 1, ready: 58 * time.Second, sick: time.Hour, want: []string{"1m0s ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &fakeMember{began: time.Now(), awaited: c.awaited}
				var published []error
				r := healthReport{member: m, publish: func(_ context.Context, problem error) error {
					published = append(published, problem)
					return nil
				}, lastLog: func(context.Context) string {
					return "unknown flag"
				}, restarts: func(context.Context) int { return 0 }, after: time.Minute,
					log: slog.New(slog.DiscardHandler),
					check: func(context.Context) error {
						if at := time.Since(m.began); at < c.ready || at >= c.sick {
							return unhealthy
						}
						return nil
					}}
				ctx, cancel := context.WithTimeout(t.Context(), 71*time.Second)
				defer cancel()
				if err := r.run(ctx); err != nil {
					t.Fatal(err)
				}
				var wantPublished []error
				switch {
				case c.ready < time.Minute:
					wantPublished = []error{nil}
				default:
					wantPublished = []error{unhealthy}
				}
				if !slices.EqualFunc(published, wantPublished, errors.Is) {
					t.Errorf("published %v, want %v", published, wantPublished)
				}
				for _, problem := range published {
					if problem != nil && !strings.HasSuffix(problem.Error(),
						"the end of the server's log: unknown flag") {
						t.Errorf("%q lacks the server's log", problem)
					}
				}
				if !slices.Equal(m.reports, c.want) {
					t.Errorf("reports %q, want %q", m.reports, c.want)
				}
			})
		})
	}
}

// TestCrashIsReportedEarly checks that the problem of a server that ends again and again is published long before the
// time is over in which the server should become ready, and that a server that becomes ready replaces the report.
func TestCrashIsReportedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var published []string
		r := healthReport{member: &fakeMember{began: began},
			lastLog:  func(context.Context) string { return "unknown flag" },
			restarts: func(context.Context) int { return int(time.Since(began) / (3 * time.Second)) },
			after:    10 * time.Minute, log: slog.New(slog.DiscardHandler),
			check: func(context.Context) error {
				if time.Since(began) < 45*time.Second {
					return errors.New("connection refused")
				}
				return nil
			},
			publish: func(_ context.Context, problem error) error {
				text := "ready"
				if problem != nil {
					text = problem.Error()
				}
				published = append(published, time.Since(began).String()+" "+text)
				return nil
			}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.run(ctx); err != nil {
			t.Fatal(err)
		}
		const says = " connection refused; the server ended and was restarted %d times; the end of the server's " +
			"log: unknown flag"
		want := []string{fmt.Sprintf("10s"+says, 3), fmt.Sprintf("25s"+says, 8), fmt.Sprintf("40s"+says, 13),
			"45s ready"}
		if !slices.Equal(published, want) {
			t.Errorf("published %q, want %q", published, want)
		}
	})
}

// TestStuckServerIsReportedEarly checks that the problem of a server that runs, but gives the same reason for a minute, is
// published long before its time is over. A server whose reason changes makes progress.
func TestStuckServerIsReportedEarly(t *testing.T) {
	for name, test := range map[string]struct {
		reason func(after time.Duration) string
		want   []string
	}{
		"stuck": {func(time.Duration) string { return "503: the key cannot be read" }, []string{
			"1m0s 503: the key cannot be read; it has been so for 1m0s; the end of the server's log: denied",
			"1m15s 503: the key cannot be read; it has been so for 1m15s; the end of the server's log: denied",
			"1m25s ready"}},
		"progress": {func(after time.Duration) string { return fmt.Sprintf("503: step %d", after/(50*time.Second)) },
			[]string{"1m25s ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var published []string
				r := healthReport{member: &fakeMember{began: began},
					lastLog:  func(context.Context) string { return "denied" },
					restarts: func(context.Context) int { return 0 }, after: 10 * time.Minute,
					log: slog.New(slog.DiscardHandler),
					check: func(context.Context) error {
						if after := time.Since(began); after < 85*time.Second {
							return errors.New(test.reason(after))
						}
						return nil
					},
					publish: func(_ context.Context, problem error) error {
						text := "ready"
						if problem != nil {
							text = problem.Error()
						}
						published = append(published, time.Since(began).String()+" "+text)
						return nil
					}}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				if err := r.run(ctx); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(published, test.want) {
					t.Errorf("published %q, want %q", published, test.want)
				}
			})
		})
	}
}
