package machine

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// refusals remembers what the servers refused to create, so that events about other things do not ask them again and again. It may be forgotten
// at any time: that costs one more call.
type refusals struct {
	mu sync.Mutex
	of map[types.UID]refusal
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
}
