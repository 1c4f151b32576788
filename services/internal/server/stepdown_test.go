package server

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// TestStepDown shows that a leader that is asked to step down releases the lock, and does not report a failure.
func TestStepDown(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	leading := p.server.leading.Load().operator
	if status := leading.Status(); status.LeaseLeft == nil || *status.LeaseLeft <= 0 || status.Heir != "" {
		t.Errorf("%+v", status)
	}
	leading.StepDown()
	p.await("the end of the term", func() bool { return strings.Contains(p.log.String(), `"stepped down"`) })
	lock, err := r.bucket.Get(t.Context(), keys.Leader("a"))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := record.DecodeLock(lock.Body); err != nil || l.Term != 1 || !l.Released {
		t.Errorf("the lock is %s (%v), want term 1, released", lock.Body, err)
	}
	if log := p.log.String(); strings.Contains(log, `"leadership given up"`) || p.server.leading.Load() != nil {
		t.Errorf("log:\n%s", log)
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
}
