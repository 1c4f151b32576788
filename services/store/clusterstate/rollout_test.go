package clusterstate_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

func halted(reason string) clusterstate.StoredRollout {
	return clusterstate.StoredRollout{Rollout: record.Rollout{Term: 1, Tenant: "prod", Group: "web",
		Halted: &record.Halted{At: t0, Reason: reason, Failed: record.GroupVersion{InfraHash: "i", RuntimeHash: "r"}}}}
}

// TestRollouts writes, reads and deletes what is stored about rollouts.
func TestRollouts(t *testing.T) {
	_, s, _ := newCluster(t)
	first, err := s.WriteRollout(t.Context(), halted("first"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteRollout(t.Context(), halted("second")); !errors.Is(err, objstore.ErrConflict) {
		t.Errorf("a write without the token: %v", err)
	}
	all, err := s.ReadRollouts(t.Context())
	if err != nil || len(all) != 1 || all[0].Halted.Reason != "first" || all[0].Token != first.Token ||
		all[0].Err != nil {
		t.Errorf("%+v, %v", all, err)
	}
	seen, err := s.UnverifiedRollouts(t.Context())
	if err != nil || len(seen) != 1 || seen[0].Group != "web" {
		t.Errorf("%+v, %v", seen, err)
	}
	if err := s.DeleteRollout(t.Context(), "prod", "web"); err != nil {
		t.Fatal(err)
	}
	if none, err := s.ReadRollout(t.Context(), "prod", "web"); err != nil || none.Token != "" || none.Halted != nil {
		t.Errorf("%+v, %v", none, err)
	}
}

// TestHostileRollout checks that a forged or restored document is not used, and that it can be replaced.
func TestHostileRollout(t *testing.T) {
	bucket, s, _ := newCluster(t)
	key := keys.Rollout(shard, "prod", "web")
	first, err := s.WriteRollout(t.Context(), halted("first"))
	if err != nil {
		t.Fatal(err)
	}
	genuine := read(t, bucket, key)
	first.Halted = halted("second").Halted
	if _, err := s.WriteRollout(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second := read(t, bucket, key)
	unsigned, err := authority.UnverifiedContent(second)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body []byte
		want error
	}{
		"without a signature": {unsigned, authority.ErrUnsigned},
		"altered":             {bytes.Replace(second, []byte("second"), []byte("forged"), 1), authority.ErrSignature},
		"an earlier version":  {genuine, highwater.ErrRolledBack},
	} {
		overwrite(t, bucket, key, c.body)
		got, err := s.ReadRollout(t.Context(), "prod", "web")
		if err != nil || !errors.Is(got.Err, c.want) || got.Halted != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		got.Rollout = halted("third").Rollout
		if _, err := s.WriteRollout(t.Context(), got); err != nil {
			t.Errorf("%s: it cannot be replaced: %v", name, err)
		}
	}
	overwrite(t, bucket, keys.Rollout(shard, "prod", "other"), second)
	if all, err := s.ReadRollouts(t.Context()); err != nil || len(all) != 2 || all[0].Err == nil {
		t.Errorf("a copy under another key: %+v, %v", all, err)
	}
}
