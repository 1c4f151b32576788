package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Standby keeps a copy of the shard's instance records for whoever may lead next, so that it need not read thousands of objects when it does, but
// lists them and reads what has changed.
//
// Invariant: the copy decides nothing. What [Standby.LoadInstances] hands out has the version that a list shows which was begun after the call, or was
// read after it; a copy that is old, incomplete or missing costs requests and nothing else. Its methods may be called concurrently.
type Standby struct {
	state *State

	mu     sync.Mutex
	copies map[InstanceKey]stored
	// closed: the records are led from, and a copy is of no use.
	closed bool
}

// stored is one version of a record that was read.
type stored struct {
	rec   record.Instance
	token objstore.Token
}

// NewStandby returns an empty one. It does nothing yet.
func NewStandby(state *State) *Standby {
	return &Standby{state: state, copies: map[InstanceKey]stored{}}
}

// Refresh reads what the copy lacks or has in another version than the list shows, atOnce objects at a time, and forgets what is gone. It costs a request
// for a thousand records, and one for each that has changed: it returns how many these are. What cannot be read is left out and told of in the error. It
// ends early, without an error, when LoadInstances is called, and does nothing from then until Reopen.
func (s *Standby) Refresh(ctx context.Context, atOnce int) (changed int, err error) {
	if s.isClosed() {
		return 0, nil
	}
	found, err := s.state.list(ctx)
	if err != nil {
		return 0, fmt.Errorf("copy instances: %w", err)
	}
	missing := s.keep(found)
	errs := make([]error, len(missing))
	err = s.state.options.ForEach(ctx, len(missing), atOnce, func(ctx context.Context, i int) error {
		if s.isClosed() {
			return nil
		}
		rec, token, err := s.state.GetInstance(ctx, missing[i].Tenant, missing[i].ID)
		if errors.Is(err, objstore.ErrNotFound) {
			return nil
		}
		if err != nil {
			errs[i] = err
			return ctx.Err()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.copies[missing[i].InstanceKey] = stored{rec, token}
		}
		return nil
	})
	if err == nil {
		err = few(errs)
	}
	if err != nil {
		return len(missing), fmt.Errorf("copy instances: %w", err)
	}
	return len(missing), nil
}

func (s *Standby) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// keep forgets copies of what is not among found, and returns those of found that it has not got.
func (s *Standby) keep(found []version) (missing []version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	kept := make(map[InstanceKey]stored, len(found))
	for _, v := range found {
		have, ok := s.copies[v.InstanceKey]
		if ok && have.token == v.token {
			kept[v.InstanceKey] = have
		} else {
			missing = append(missing, v)
		}
	}
	s.copies = kept
	return missing
}

// LoadInstances is [State.LoadInstances], but what the copy has in the listed version is not read again; spared is how many records that were. The copy is
// given up when this succeeds, and closed whether it does or not.
func (s *Standby) LoadInstances(ctx context.Context, take func(record.Instance, objstore.Token)) (spared int, err error) {
	copies := s.close()
	all, spared, err := s.load(ctx, copies)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.copies = copies // whoever tries again needs it
		return 0, fmt.Errorf("load instances: %w", err)
	}
	for _, one := range all {
		take(one.rec, one.token)
	}
	return spared, nil
}

// close ends Refresh and takes the copy away.
func (s *Standby) close() map[InstanceKey]stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	copies := s.copies
	s.copies, s.closed = map[InstanceKey]stored{}, true
	return copies
}

// load reads what copies lacks.
func (s *Standby) load(ctx context.Context, copies map[InstanceKey]stored) (all []stored, spared int, err error) {
	found, err := s.state.list(ctx)
	if err != nil {
		return nil, 0, err
	}
	fresh := func(i int) (stored, bool) {
		have, ok := copies[found[i].InstanceKey]
		return have, ok && have.token == found[i].token
	}
	for i := range found {
		if _, ok := fresh(i); ok {
			spared++
		}
	}
	all, err = load(ctx, s.state, len(found), func(ctx context.Context, i int) (stored, error) {
		if have, ok := fresh(i); ok {
			return have, nil
		}
		rec, token, err := s.state.GetInstance(ctx, found[i].Tenant, found[i].ID)
		return stored{rec, token}, err
	})
	return all, spared, err
}

// Reopen lets Refresh fill the copy again: the records are led from no more.
func (s *Standby) Reopen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = false
}
