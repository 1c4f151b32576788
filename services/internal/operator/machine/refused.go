package machine

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// refusals remembers what the servers refused to create, so that events about other things do not ask them again and
// again, and which creations failed lately. It is forgotten with the process: that costs one more call, and a new
// process takes longer to come than a creation to be seen.
type refusals struct {
	mu sync.Mutex
	of map[types.UID]refusal
	// lost is when a creation was asked for last whose answer was an error: it may be made nevertheless.
	lost map[types.UID]time.Time
}

type refusal struct {
	generation int64
	group      string // its etag
	until      time.Time
	fault      *fault
}

func etag(s *shardView) string {
	if s == nil {
		return ""
	}
	return s.group.GetEtag()
}

func (r *refusals) put(m *v1beta1.NstanceMachine, s *shardView, f *fault, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[types.UID]refusal{}
	}
	r.of[m.UID] = refusal{generation: m.Generation, group: etag(s), until: now.Add(f.after), fault: f}
}

// get returns the refusal if asking again now would be asking the same.
func (r *refusals) get(m *v1beta1.NstanceMachine, s *shardView, now time.Time) *fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.of[m.UID]
	if !ok || old.generation != m.Generation || old.group != etag(s) || !now.Before(old.until) {
		return nil
	}
	f := *old.fault
	f.after = old.until.Sub(now)
	return &f
}

func (r *refusals) forget(id types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, id)
	delete(r.lost, id)
}

func (r *refusals) doubt(id types.UID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == nil {
		r.lost = map[types.UID]time.Time{}
	}
	r.lost[id] = now
}

// inDoubt: "there is no such instance" is not to be believed yet.
func (r *refusals) inDoubt(id types.UID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.lost[id]
	return ok && now.Sub(at) < doubt
}
