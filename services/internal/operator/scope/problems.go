package scope

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Problems collects what is wrong with the operator's own ConfigMaps, Secrets and configuration file. The condition
// Ready of the NstanceCluster shows it. The zero value is empty. All methods are safe for concurrent use.
type Problems struct {
	mu      sync.Mutex
	by      map[string]Problem
	changed []func()
}

// Problem is what is wrong, and the reason of its event.
type Problem struct{ Reason, Message string }

// Set replaces the problem of a source. If err is nil, the source has none.
func (p *Problems) Set(source, reason string, err error) {
	p.mu.Lock()
	before, had := p.by[source]
	if err == nil {
		delete(p.by, source)
	} else {
		if p.by == nil {
			p.by = map[string]Problem{}
		}
		p.by[source] = Problem{reason, err.Error()}
	}
	after, has := p.by[source]
	changed := p.changed
	p.mu.Unlock()
	if had == has && before == after {
		return
	}
	for _, fn := range changed {
		fn()
	}
}

// All returns the problems, sorted by source.
func (p *Problems) All() (all []Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, source := range slices.Sorted(maps.Keys(p.by)) {
		all = append(all, p.by[source])
	}
	return all
}

// String returns the messages of all problems, "" if there is none.
func (p *Problems) String() string {
	var messages []string
	for _, one := range p.All() {
		messages = append(messages, one.Message)
	}
	return strings.Join(messages, "; ")
}

// Notify registers fn for all later changes. fn must not block.
func (p *Problems) Notify(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = append(p.changed, fn)
}

// EventNote shortens a text to the API's limit for an event.
func EventNote(text string) string { return text[:min(len(text), 1024)] }

// ConditionMessage shortens a text to the API's limit for a condition.
func ConditionMessage(text string) string { return text[:min(len(text), 32768)] }
