package server

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/lease"
)

// An heir copies the records, and when it leads it reads none of them again.
func TestHeirHasCopiedTheRecords(t *testing.T) {
	r, other := newRig(t), newRig(t)
	other.bucket, other.provider = r.bucket, r.provider
	for i, rig := range []*rig{r, other} {
		rig.set = func(cfg *Config) {
			cfg.Options.ID, cfg.Options.Instance = fmt.Sprintf("s%d", i), 1 // the service ports are the leader's
			cfg.Heir = lease.Options{HeirLease: 30 * time.Second, HeirRenew: 10 * time.Second, Steady: 500 * time.Millisecond}
		}
	}
	r.configure(nil)
	first := r.start(testKey)
	settled := func() bool { // VMs and reservations are recorded
		states := map[record.State]int{}
		entries, err := r.bucket.List(t.Context(), "shard/a/instance/")
		for _, entry := range entries {
			object, err := r.bucket.Get(t.Context(), entry.Key)
			if err != nil {
				return false
			}
			rec, err := record.DecodeInstance(object.Body)
			if err != nil {
				t.Fatal(err)
			}
			states[rec.State]++
		}
		return err == nil && len(entries) == 10 && states[record.Created] == 2
	}
	first.await("two VMs and eight reservations", settled)
	other.configure(nil) // it has ports of its own; the first has read its configuration
	heir := other.start(testKey)
	heir.await("a copy of the records", func() bool { return strings.Contains(heir.log.String(), "records are copied") })
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	heir.await("the heir to lead", func() bool { return strings.Contains(heir.log.String(), "serving as leader") })
	loaded := regexp.MustCompile(`"records loaded","records":(\d+),"copied_before":(\d+)`).FindStringSubmatch(heir.log.String())
	if len(loaded) != 3 || loaded[1] != "10" || loaded[2] != "10" {
		t.Errorf("loaded %q, want all of ten records from the copy", loaded)
	}
	if n := r.running(); n != 2 {
		t.Errorf("%d VMs", n)
	}
}

func TestRecordsAreLookedAtRarelyWhereNothingChanges(t *testing.T) {
	pause, day := time.Duration(0), 0
	for at := time.Duration(0); at < 24*time.Hour; at += pause {
		pause = nextCopy(pause, 0, nil)
		day++
	}
	if day > 16 || pause != copyRarely {
		t.Errorf("%d looks a day, the last pause is %v", day, pause)
	}
	if p := nextCopy(pause, 1, nil); p != copyAgain {
		t.Errorf("after a change the next look is %v later", p)
	}
	if p := nextCopy(pause, 0, io.ErrUnexpectedEOF); p != copyAgain {
		t.Errorf("after an error the next look is %v later", p)
	}
}
