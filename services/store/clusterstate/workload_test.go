package clusterstate_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// TestRotateWorkloadCA takes all steps of a rotation, and calls RotateWorkloadCA also between the steps, when nothing
// may change. The new CA issues certificates when "notice" has passed. The old CA is removed when its last certificate
// has expired.
func TestRotateWorkloadCA(t *testing.T) {
	const notice, day = 48 * time.Hour, 24 * time.Hour
	now, bucket := t0, mem.New()
	s := open(t, bucket, 1, func(o *clusterstate.Options) { o.Now = func() time.Time { return now } })
	if _, err := s.RotateWorkloadCA(t.Context(), notice); !errors.Is(err, secretstore.ErrNotFound) {
		t.Errorf("without a workload CA: %v", err)
	}
	cluster, _, err := s.EnsureCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := s.EnsureWorkloadCA(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	old := first[0].Certificate()
	now = now.Add(day)
	begun, err := s.RotateWorkloadCA(t.Context(), notice)
	if err != nil || len(begun) != 2 || !begun[0].Certificate().Equal(old) ||
		!begun[1].Starts().Equal(now.Add(notice)) {
		t.Fatalf("after the beginning: %v, %v", begun, err)
	}
	next := begun[1].Certificate()
	for _, at := range []struct {
		after  time.Duration
		issuer bool // the new CA
	}{{time.Hour, false}, {notice - time.Second, false}, {notice, true}, {notice + 90*day - time.Second, true}} {
		now = t0.Add(day + at.after)
		cas, err := s.RotateWorkloadCA(t.Context(), notice)
		if err != nil || !bytes.Equal(cas.EncodeCertificates(), begun.EncodeCertificates()) {
			t.Errorf("after %s: %v, %v; want both CAs", at.after, cas, err)
		}
		if got := cas.At(now, cluster).Certificate(); got.Equal(next) != at.issuer || got.Equal(old) == at.issuer {
			t.Errorf("after %s %s issues, want the new CA: %t", at.after, got.Subject, at.issuer)
		}
		ensured, created, err := s.EnsureWorkloadCA(t.Context(), cluster) // by a leader
		if err != nil || created || !bytes.Equal(ensured.EncodeCertificates(), begun.EncodeCertificates()) {
			t.Errorf("after %s a leader finds %v, %v", at.after, ensured, err)
		}
	}
	now = t0.Add(day + notice + 90*day)
	last, err := s.RotateWorkloadCA(t.Context(), notice)
	if err != nil || len(last) != 1 || !last[0].Certificate().Equal(next) {
		t.Errorf("at the end: %v, %v", last, err)
	}
	again, err := s.RotateWorkloadCA(t.Context(), notice)
	if err != nil || len(again) != 2 || !again[0].Certificate().Equal(next) {
		t.Errorf("the next rotation: %v, %v", again, err)
	}
	if cas, err := s.LoadWorkloadCAs(t.Context()); err != nil ||
		!bytes.Equal(cas.EncodeCertificates(), again.EncodeCertificates()) {
		t.Errorf("stored: %v, %v", cas, err)
	}
}

// TestRotateWorkloadCATooSoon checks that a workload CA is not replaced before it starts. A replacement would start
// later, and until then the cluster's CA would have to issue.
func TestRotateWorkloadCATooSoon(t *testing.T) {
	now := t0
	s := open(t, mem.New(), 1, func(o *clusterstate.Options) { o.Now = func() time.Time { return now } })
	cluster, _, err := s.EnsureCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Hour) // the cluster is in use: the workload CA starts after a notice
	if _, _, err := s.EnsureWorkloadCA(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RotateWorkloadCA(t.Context(), time.Hour); !errors.Is(err, clusterstate.ErrWorkloadCANew) {
		t.Errorf("before its start: %v", err)
	}
}

// TestInterruptedWorkloadCARotation lets the write of each step fail. In one half of the cases, the failed write takes
// effect nevertheless. Afterwards the stored CAs must be those from before the step or those from after it. The
// repeated command must continue from there.
func TestInterruptedWorkloadCARotation(t *testing.T) {
	for _, landed := range []bool{false, true} {
		now := t0
		bucket := &lossy{Store: mem.New()}
		s := open(t, bucket, 1, func(o *clusterstate.Options) { o.Now = func() time.Time { return now } })
		cluster, _, err := s.EnsureCA(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.EnsureWorkloadCA(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
		for step, want := range []int{2, 1} {
			before, err := s.LoadWorkloadCAs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			bucket.fail, bucket.land = true, landed
			_, failed := s.RotateWorkloadCA(t.Context(), time.Hour)
			bucket.fail = false
			if failed == nil {
				t.Errorf("landed %t, step %d: no error", landed, step)
			}
			after, err := s.LoadWorkloadCAs(t.Context())
			if err != nil || bytes.Equal(after.EncodeCertificates(), before.EncodeCertificates()) == landed {
				t.Errorf("landed %t, step %d: %v, %v", landed, step, after, err)
			}
			if !landed {
				if after, err = s.RotateWorkloadCA(t.Context(), time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			if len(after) != want {
				t.Errorf("landed %t, step %d: %d CAs, want %d", landed, step, len(after), want)
			}
			now = now.Add(91 * 24 * time.Hour)
		}
	}
}

var errLost = errors.New("the answer is lost")

// lossy is a store with writes that fail. If "land" is true, a failed write takes effect nevertheless.
type lossy struct {
	objstore.Store

	fail, land bool
}

// Put implements objstore.Store.
func (l *lossy) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	if !l.fail {
		return l.Store.Put(ctx, key, body, cond)
	}
	if l.land {
		if _, err := l.Store.Put(ctx, key, body, cond); err != nil {
			return "", err
		}
	}
	return "", errLost
}
