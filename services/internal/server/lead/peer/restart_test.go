package peer

import (
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// TestLeaderAsksStandbysToRestart asks a standby that restarts, one that refuses, and one of an earlier version.
func TestLeaderAsksStandbysToRestart(t *testing.T) {
	c := transporttest.New(t)
	leader := start(t, c, "s", "one")
	able, unable, earlier := start(t, c, "s", "two"), start(t, c, "s", "three"), start(t, c, "s", "four")
	asked := make(chan string, 9)
	able.network.options.Config = func() string { return "v\x01" } // any bytes
	able.network.options.Restart = func(version string) string {
		asked <- version
		return ""
	}
	unable.network.options.Config = func() string { return "v1" }
	unable.network.options.Restart = func(string) string { return strings.Repeat("no key ", maxRefusal) }
	for _, standby := range []*node{able, unable, earlier} {
		standby.network.Follow(leader.lock())
		leader.hears(t, election.LinkUp{Peer: standby.self})
	}
	for _, standby := range []*node{able, unable} {
		leader.network.AskRestart(standby.self, "v2")
	}
	leader.network.AskRestart(election.Peer{ID: "two", Incarnation: "two-0"}, "v2") // it has ended
	if got := <-asked; got != "v2" {
		t.Errorf("asked to restart with %q", got)
	}
	found := map[string]Standby{}
	for end := time.Now().Add(20 * time.Second); found["three"].Refusal == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no refusal: %+v", found)
		}
		for _, s := range leader.network.Standbys() {
			found[s.ID] = s
		}
	}
	if got := found["three"]; got.RefusedVersion != "v2" || len(got.Refusal) != maxRefusal ||
		!strings.HasPrefix(got.Refusal, "no key") {
		t.Errorf("%+v", got)
	}
	for id, want := range map[string]Standby{"two": {Peer: able.self, Restarts: true, Config: "v\x01"},
		"four": {Peer: earlier.self}} {
		if found[id] != want {
			t.Errorf("%+v, want %+v", found[id], want)
		}
	}
	if len(asked) > 0 {
		t.Error("a standby was asked twice")
	}
}

// TestOnlyTheLeaderAsksForARestart checks that a link ends over which the wrong side sends a message about a restart.
func TestOnlyTheLeaderAsksForARestart(t *testing.T) {
	n := New(Options{Self: election.Peer{ID: "one", Incarnation: "1"}})
	other := election.Peer{ID: "two", Incarnation: "2"}
	for _, tc := range []struct {
		message  any
		incoming bool
	}{{restart{"v"}, true}, {refusal{"v", "no key"}, false}} {
		if n.deliver(newLink(other, tc.incoming), tc.message) {
			t.Errorf("%T is accepted", tc.message)
		}
		if !n.deliver(newLink(other, !tc.incoming), tc.message) {
			t.Errorf("%T is refused", tc.message)
		}
	}
}
