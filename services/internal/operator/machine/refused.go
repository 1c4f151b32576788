package machine

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// refusals remembers, in memory only, two kinds of CreateInstance calls: those that the server refused, and failed ones
// that may still create an instance. For some time, the operator does not repeat a refused call, because the call would
// fail again. After a restart, the operator repeats a refused call once. A call that failed before the restart can no
// longer create an instance.
type refusals struct {
	mu sync.Mutex
	of map[types.UID]refusal
	// lost is the time of each machine's last CreateInstance call that failed. The call may still create the instance.
	lost map[types.UID]time.Time
}

type refusal struct {
	generation int64
	group      string // the group's etag
	until      time.Time
	fault      *fault
}

func etag(s *shardView) string {
	if s == nil {
		return ""
	}
	return s.group.GetEtag()
}

func (r *refusals) remember(m *v1beta1.NstanceMachine, s *shardView, f *fault, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[types.UID]refusal{}
	}
	r.of[m.UID] = refusal{generation: m.Generation, group: etag(s), until: now.Add(f.after), fault: f}
}

// lookup returns the stored refusal. It returns nil if the refusal has expired, or if the machine or the group has
// changed after the refusal.
func (r *refusals) lookup(m *v1beta1.NstanceMachine, s *shardView, now time.Time) *fault {
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

func (r *refusals) rememberLost(id types.UID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == nil {
		r.lost = map[types.UID]time.Time{}
	}
	r.lost[id] = now
}

// inDoubt reports whether the server may still process a failed CreateInstance call. If so, an answer that the instance
// does not exist may be premature.
func (r *refusals) inDoubt(id types.UID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.lost[id]
	return ok && now.Sub(at) < creationDoubt
}
