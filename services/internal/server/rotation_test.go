package server

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// TestFollowWorkloadCA rotates the workload CA while a shard runs. The leader restarts, and its next term sends both
// CAs. No VM is replaced.
func TestFollowWorkloadCA(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	l := p.server.leading.Load()
	if err := p.server.followWorkloadCA(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	both, err := p.server.state.RotateWorkloadCA(t.Context(), time.Hour)
	if err != nil || len(both) != 2 {
		t.Fatal(both, err)
	}
	if err := p.server.followWorkloadCA(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(); !errors.Is(err, ErrRestart) {
		t.Fatalf("the leader ended with %v, want a restart:\n%s", err, p.log)
	}
	made := r.provider.Count(mock.Create)
	p = r.start(testKey)
	p.await("a term with both CAs", func() bool {
		l := p.server.leading.Load()
		return l != nil && bytes.Equal(l.workloadCAPEM, both.EncodeCertificates())
	})
	if err := p.server.followWorkloadCA(t.Context(), p.server.leading.Load()); err != nil {
		t.Error(err)
	}
	p.await("the VMs of before", func() bool { return r.running() == 2 })
	if now := r.provider.Count(mock.Create); now != made {
		t.Errorf("%d VMs were made, %d before", now, made)
	}
}
