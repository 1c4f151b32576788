package journal_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
)

// TestReplacements checks which events of the journal count as a replacement, and the durations of its stages in
// milliseconds.
func TestReplacements(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	on := func(ms int, kind record.EventKind, instance string) record.Event {
		return record.Event{At: t0.Add(time.Duration(ms) * time.Millisecond), Kind: kind, Instance: instance}
	}
	creating := func(ms int) record.Event {
		e := on(ms, record.EventInstanceCreating, "new")
		e.Replaces, e.Cause, e.Tenant, e.Group = "old", "gone", "prod", "web"
		return e
	}
	registered := func(ms int) record.Event {
		e := on(ms, record.EventInstanceRegistered, "new")
		e.TookSeconds = 0.02
		return e
	}
	lost, healthy := on(0, record.EventInstanceLost, "old"), on(900, record.EventInstanceHealthy, "new")
	created := on(100, record.EventInstanceCreated, "new")
	const all = "decide 5 create 95 boot 480 register 20 healthy 300"
	for name, tc := range map[string]struct {
		events []record.Event
		want   string // "" means that there is no replacement
	}{
		"every stage": {[]record.Event{lost, creating(5), created, registered(600), healthy}, all},
		"powered off, then lost": {[]record.Event{on(-700, record.EventInstanceNotice, "old"), lost, creating(5),
			created, registered(600), healthy}, all},
		"lost twice": {[]record.Event{lost, on(4, record.EventInstanceLost, "old"), creating(5), created,
			registered(600), healthy}, all},
		"lost again after the create call": {[]record.Event{lost, creating(5), on(50, record.EventInstanceLost, "old"),
			created, registered(600), healthy}, all},
		"healthy in between": {[]record.Event{on(-900, record.EventInstanceLost, "old"),
			on(-800, record.EventInstanceHealthy, "old"), lost, creating(5), created, registered(600), healthy}, all},
		"a notice": {[]record.Event{on(0, record.EventInstanceNotice, "old"), creating(5), created, registered(600),
			on(700, record.EventInstanceLost, "old"), healthy}, all},
		"only notices": {[]record.Event{on(0, record.EventInstanceNotice, "old"),
			on(3, record.EventInstanceUnhealthy, "old"), creating(5), created, registered(600), healthy}, all},
		"replaced before it failed": {[]record.Event{creating(5), created, registered(600),
			on(700, record.EventInstanceLost, "old"), healthy}, "create 95 boot 480 register 20 healthy 300"},
		"registered before the answer": {[]record.Event{lost, creating(5), registered(60), created, healthy},
			"decide 5 create 95 boot 0 register 20 healthy 840"},
		"replaces none": {[]record.Event{on(5, record.EventInstanceCreating, "new"), created, registered(600),
			healthy}, ""},
		"failed": {[]record.Event{lost, creating(5), on(100, record.EventInstancePendingDeletion, "new"),
			healthy}, ""},
		"from a term on": {[]record.Event{created, registered(600), healthy}, ""},
		"too slow": {[]record.Event{lost, creating(5), created, on(2*60*60*1000, record.EventInstanceCreating, "other"),
			on(2*60*60*1000, record.EventInstanceHealthy, "new")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var all journal.Replacements
			var got []string
			for i := range tc.events {
				found, ok := all.Add(&tc.events[i])
				if !ok {
					continue
				}
				if found.Tenant != "prod" || found.Group != "web" || found.Cause != "gone" || found.Replaces != "old" {
					t.Errorf("found %+v", found)
				}
				for _, step := range found.Steps() {
					got = append(got, fmt.Sprint(step.Stage, " ", step.Took().Milliseconds()))
				}
			}
			if text := strings.Join(got, " "); text != tc.want {
				t.Errorf("the stages are %q, want %q", text, tc.want)
			}
		})
	}
}

// TestReplacementsAreBounded checks that memory stays bounded: the number of measured replacements is limited, and old
// ones are dropped after an hour.
func TestReplacementsAreBounded(t *testing.T) {
	var all journal.Replacements
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	replace := func(n int) {
		id, old := fmt.Sprint("new", n), fmt.Sprint("old", n)
		all.Add(&record.Event{At: at, Kind: record.EventInstanceLost, Instance: old})
		all.Add(&record.Event{At: at, Kind: record.EventInstanceCreating, Instance: id, Replaces: old})
	}
	healthy := func(n int) bool {
		_, ok := all.Add(&record.Event{At: at, Kind: record.EventInstanceHealthy, Instance: fmt.Sprint("new", n)})
		return ok
	}
	for n := range 10_001 {
		replace(n)
	}
	if !healthy(9_999) || healthy(10_000) {
		t.Error("the limit is not 10,000 replacements")
	}
	at = at.Add(2 * time.Hour)
	if replace(20_000); !healthy(20_000) {
		t.Error("there is no room after two hours")
	}
}
