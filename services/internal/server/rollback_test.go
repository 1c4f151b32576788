package server

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// TestHostileRollbackWhileNoServerRuns simulates an attacker who can write to the bucket. After the last server has
// stopped, the attacker restores an earlier version of a sealed secret or a signed document. The lock contains the
// later version number, so the next server must refuse the object.
func TestHostileRollbackWhileNoServerRuns(t *testing.T) {
	for name, key := range map[string]string{
		"a sealed secret":   keys.ClusterSecret(secretstore.CAKey),
		"a signed document": keys.ClusterCA(),
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestShard(t)
			r.configure(nil)
			p := r.start(testKey)
			p.await("two VMs", func() bool { return r.running() == 2 })
			earlier := r.get(key)

			// The test, not the server, writes the later versions. The server reads them in its next term.
			secret, err := p.server.secrets.Get(t.Context(), secretstore.CAKey)
			if err != nil {
				t.Fatal(err)
			}
			ca, err := p.server.state.LoadCA(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = p.end()
			if err := p.server.secrets.Put(t.Context(), secretstore.CAKey, secret.Value, secretstore.Any); err != nil {
				t.Fatal(err)
			}
			if err := p.server.state.WriteCABundle(t.Context(), []authority.CA{ca}, ca.Certificate()); err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(earlier, r.get(key)) {
				t.Fatal("no later version was written")
			}
			later := r.start(testKey)
			later.await("a lock of the second server", func() bool {
				lock, err := record.DecodeLock(r.get(keys.Leader("a")))
				return err == nil && lock.Term == 2 && !lock.Released
			})
			if err := later.end(); err != nil {
				t.Fatal(err)
			}

			r.put(key, earlier)
			last := r.start(testKey)
			last.await("a refusal of "+key, func() bool {
				return strings.Contains(last.log.String(), "an earlier version was written back")
			})
			if err := last.end(); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(r.get(key), earlier) {
				t.Error("the server replaced what it refused")
			}
		})
	}
}

// TestHostileMarks simulates an attacker who changes the lock while no server runs. The attacker raises the mark of the
// trust bundle, which is the highest version that a server has seen. The next server must report the reason and change
// no VM. With the genuine lock the shard must work again.
func TestHostileMarks(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	p.await("a lock with marks", func() bool {
		lock, err := record.DecodeLock(r.get(keys.Leader("a")))
		return err == nil && lock.Marks != ""
	})
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	genuine := r.get(keys.Leader("a"))
	lock, err := record.DecodeLock(genuine)
	if err != nil {
		t.Fatal(err)
	}
	marks := highwater.Marks{Scope: "test"}
	if err := marks.Merge(lock.Marks); err != nil {
		t.Fatal(err)
	}
	marks.Raise(keys.ClusterCA(), highwater.MaxVersion)
	lock.Marks = marks.Encode()
	forged, err := record.EncodeLock(lock)
	if err != nil {
		t.Fatal(err)
	}

	r.put(keys.Leader("a"), forged)
	next := r.start(testKey)
	next.await("a refusal", func() bool {
		return strings.Contains(next.log.String(), "an earlier version was written back")
	})
	if err := next.end(); err != nil {
		t.Error(err)
	}
	if n := r.running(); n != 2 {
		t.Errorf("%d VMs run, want the two of before", n)
	}

	r.put(keys.Leader("a"), genuine)
	last := r.start(testKey)
	last.await("a lock of the last server", func() bool {
		lock, err := record.DecodeLock(r.get(keys.Leader("a")))
		return err == nil && lock.LeaderID != "" && !lock.Released
	})
	if err := last.end(); err != nil {
		t.Error(err)
	}
	if n := r.running(); n != 2 {
		t.Errorf("%d VMs run, want the two of before", n)
	}
}
