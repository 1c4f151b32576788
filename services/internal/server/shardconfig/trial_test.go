package shardconfig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// inZone returns the document with the given zone of the provider. A server must restart to use another zone.
func inZone(zone string) string {
	return strings.Replace(document("", ""), `"provider": {"kind": "mock"}`,
		`"provider": {"kind": "mock", "zone": "`+zone+`"}`, 1)
}

// refuseZone returns a trial that refuses one zone and counts its calls.
func refuseZone(zone string, calls *int) Trial {
	return func(_ context.Context, shard *config.Shard, _ bool) error {
		*calls++
		if shard.Server.Provider.Zone == zone {
			return errors.New("open provider mock: there is no zone " + zone)
		}
		return nil
	}
}

func TestConfigurationThatFailsItsTrialIsNotApplied(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	var trials int
	l := &leader{Manager: New(b.state, shardName, slog.New(slog.DiscardHandler))}
	l.SetTrial(refuseZone("bad", &trials))
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Lead(t.Context(), 1, l); err != nil || trials != 1 {
		t.Fatalf("%v; the configuration was tried out %d times, want once", err, trials)
	}
	was := l.Status().ETag
	b.write(t, inZone("bad"))
	for range 2 { // it stays refused
		problems := l.refresh(t, Invalid)
		if len(problems) != 1 || problems[0].String() != "config: open provider mock: there is no zone bad" {
			t.Errorf("problems %v", problems)
		}
	}
	if s := l.Status(); s.ETag != was || s.RefusedETag == "" || s.RestartETag != "" {
		t.Errorf("status %+v", s)
	}
	if applied, err := b.state.ReadApplied(t.Context()); err != nil || applied.Source != was {
		t.Errorf("recorded as applied: %s (%v), want %s", applied.Source, err, was)
	}

	// A new process must use the applied configuration, both before it leads and as leader.
	next := &leader{Manager: New(b.state, shardName, slog.New(slog.DiscardHandler))}
	next.SetTrial(refuseZone("bad", &trials))
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := next.Lead(t.Context(), 2, next); err != nil {
		t.Fatal(err)
	}
	if s := next.Status(); s.ETag != was || s.RefusedETag == "" || len(s.Problems) != 1 ||
		next.groups[static].Size != 3 {
		t.Errorf("the next leader's status: %+v", s)
	}

	// A corrected configuration is applied.
	b.write(t, inZone("good"))
	next.refresh(t, Restart)
	if s := next.Status(); s.RefusedETag != "" {
		t.Errorf("status %+v", s)
	}
}

func TestFirstConfigurationThatFailsItsTrial(t *testing.T) {
	b := newBucket()
	b.write(t, inZone("bad"))
	var trials int
	m := New(b.state, shardName, slog.New(slog.DiscardHandler))
	m.SetTrial(refuseZone("bad", &trials))
	if err := m.Load(t.Context()); err == nil || err.Error() != "open provider mock: there is no zone bad" {
		t.Errorf("got %v", err)
	}
	if m.Shard() != nil {
		t.Error("it is in force")
	}
}

// TestAppliedConfigurationThatThisVersionWouldRefuse checks an upgrade to a version that finds a mistake in the args of
// the applied configuration. The shard must still have a leader, even if the bucket has a newer, invalid configuration.
// A new configuration with that mistake must be refused.
func TestAppliedConfigurationThatThisVersionWouldRefuse(t *testing.T) {
	inAWS := strings.Replace(document("", `, "args": {"NoSuchField": 1}`), `{"kind": "mock"}`,
		`{"kind": "aws", "region": "eu-central-1", "zone": "eu-central-1a"}`, 1)
	for name, newest := range map[string]string{"alone": inAWS, "beside an invalid one": "{"} {
		b := newBucket()
		b.write(t, inAWS)
		body, token, err := b.state.ReadConfig(t.Context(), shardName)
		if err != nil {
			t.Fatal(err)
		}
		m := New(b.state, shardName, slog.New(slog.DiscardHandler))
		if err := m.Load(t.Context()); err == nil {
			t.Fatal("the configuration is valid")
		}
		if err := b.state.WriteApplied(t.Context(), body, token, 1); err != nil {
			t.Fatal(err)
		}
		b.write(t, newest)
		l := &leader{Manager: m}
		if err := l.Lead(t.Context(), 2, l); err != nil || l.groups[static].Size != 3 {
			t.Errorf("%s: %v, groups %v", name, err, l.groups)
			continue
		}
		b.write(t, inAWS+"\n")
		l.refresh(t, Invalid)
	}
}

// TestConfigurationForSuccessors checks a configuration for servers that will replace this one. It must be neither
// applied nor refused, even by a process that starts with it and cannot run with it.
func TestConfigurationForSuccessors(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	trial := func(_ context.Context, shard *config.Shard, _ bool) error {
		if shard.Server.Provider.Zone == "next" {
			return fmt.Errorf("another interface: %w", ErrForSuccessor)
		}
		return nil
	}
	l := &leader{Manager: New(b.state, shardName, slog.New(slog.DiscardHandler))}
	l.SetTrial(trial)
	if err := l.Lead(t.Context(), 1, l); err != nil {
		t.Fatal(err)
	}
	was := l.Status().ETag
	b.write(t, inZone("next"))
	restarted := &leader{Manager: New(b.state, shardName, slog.New(slog.DiscardHandler))}
	restarted.SetTrial(trial)
	if err := restarted.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l.refresh(t, Unchanged)
	}
	for what, m := range map[string]*leader{"leader": l, "new process": restarted} {
		next := m.Successor()
		if s := m.Status(); s.ETag != was || s.RefusedETag != "" || next == nil || next.Server.Provider.Zone != "next" {
			t.Errorf("%s: status %+v, successor %v", what, s, next)
		}
	}
	b.write(t, document("", ""))
	l.refresh(t, Unchanged)
	if l.Successor() != nil {
		t.Error("the configuration is this server's again, and the other one still waits for successors")
	}
}
