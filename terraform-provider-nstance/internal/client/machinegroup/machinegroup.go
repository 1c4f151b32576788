// Package machinegroup tells why a cloud starts no machine in a group of machines that the cloud keeps at its size.
// The packages of the clouds implement [Group].
//
// Invariant: the package and those of the clouds change nothing.
package machinegroup

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// Place names a group. Which fields are needed depends on the cloud.
type Place struct{ Kind, Name, Region, Zone, Project string }

// State is what a cloud says about a group.
type State struct {
	// Refusal is the reason why the cloud did not start a machine at its newest attempt. It is "" if that attempt
	// succeeded or goes on, or if there was none.
	Refusal string
	// Refusals is the number of attempts that the cloud has refused since the last one that succeeded, as far as the
	// cloud tells.
	Refusals int
	// Current means that the group has its size, and that all its machines are healthy and have the newest
	// configuration. It is false if the cloud does not know that.
	Current bool
	// Machine is the ID of a machine of a current group.
	Machine string
	// Doing describes for people what the group does now. It may be "".
	Doing string
}

// Group is a group of machines in a cloud.
type Group interface {
	// Look asks the cloud for the state of the group.
	Look(ctx context.Context) (State, error)
	// String describes the group for messages.
	String() string
}

// Cloud is a cloud with such groups.
type Cloud struct {
	// Name is the value of [Place.Kind].
	Name string
	// KnowsCurrent means that the cloud knows [State.Current].
	KnowsCurrent bool
	// Open returns a group. It sends no request.
	Open func(ctx context.Context, place Place, access cloud.Access) (Group, error)
}

const (
	// interval is the pause between two looks. lookTimeout bounds one look.
	interval    = 10 * time.Second
	lookTimeout = 5 * time.Second
	// patience is how long a refusal lasts before it is final. A cloud repeats a refused attempt, and may have room
	// then. If the cloud refuses another attempt, the refusal is final earlier.
	patience = time.Minute
)

// Watch looks at a group again and again. It is not safe for concurrent use.
type Watch struct {
	group Group
	now   func() time.Time

	last   State
	err    error
	looked time.Time
	// refusedSince is the time of the first look at the present refusal. refusals is the number of refused attempts at
	// the first look at a refusal since an attempt succeeded.
	refusedSince time.Time
	refusals     int
}

// NewWatch returns a watch of a group. now returns the time. Without a group, the watch finds nothing.
func NewWatch(group Group, now func() time.Time) *Watch { return &Watch{group: group, now: now} }

// Look returns the state of the group, without a refusal that is not final yet. It asks the cloud at most once in
// [interval]. If the cloud does not answer, the group is neither refused nor current.
func (w *Watch) Look(ctx context.Context) State {
	now := w.now()
	if w.group == nil || !w.looked.IsZero() && now.Sub(w.looked) < interval {
		return w.settled()
	}
	limited, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	state, err := w.group.Look(limited)
	if ctx.Err() != nil {
		return w.settled()
	}
	w.looked, w.last, w.err = now, state, err
	switch {
	case err != nil:
		w.last, w.refusedSince = State{}, time.Time{}
	case state.Refusal == "":
		w.refusedSince = time.Time{}
	case w.refusedSince.IsZero():
		w.refusedSince = now
		if w.refusals == 0 || state.Refusals < w.refusals {
			w.refusals = state.Refusals
		}
	}
	return w.settled()
}

// settled returns the last state without a refusal that is not final.
func (w *Watch) settled() State {
	state := w.last
	if state.Refusals <= w.refusals && w.looked.Sub(w.refusedSince) < patience {
		state.Refusal = ""
	}
	return state
}

// Found describes for people what the last look found, or returns "".
func (w *Watch) Found() string {
	switch {
	case w.err != nil:
		return fmt.Sprintf("the %s cannot be read: %v", w.group, w.err)
	case w.last.Refusal != "":
		return "the cloud refused the last machine: " + w.last.Refusal
	}
	return w.last.Doing
}
