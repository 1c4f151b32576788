package histories

import (
	"context"
	"crypto/md5" //nolint:gosec // S3's ETags are MD5 sums (Amazon S3 API reference, Object)
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// history holds the requests of all clients to one object, ordered by their beginnings. All times come from one clock.
type history struct {
	clock lease.Clock
	key   string
	mu    sync.Mutex
	ops   []op

	last             record.Lock // the last one written
	named, inherited int         // number of heirs named in locks, and of those that then led
}

// op is one request. A token identifies the contents of the object; "" means that there is no object.
type op struct {
	client     int
	begin, end int64
	put        bool
	condition  string // of a put: the token that must be there
	token      string // of a put: the token that it writes; of a get: the token that it read
	outcome    outcome
}

type outcome int

const (
	done     outcome = iota
	conflict         // a put with a condition that did not hold
	unknown          // a put that may have taken effect, or still may
)

func (o op) String() string {
	if !o.put {
		return fmt.Sprintf("client %d %d-%d reads %.6q", o.client, o.begin, o.end, o.token)
	}
	return fmt.Sprintf("client %d %d-%d puts %.6q if %.6q: %d", o.client, o.begin, o.end, o.token, o.condition,
		o.outcome)
}

// recorded is a client's store that writes its requests into the history.
type recorded struct {
	objstore.Store
	history *history
	client  int
}

// Get implements objstore.Store. A failed get is not recorded, because it says nothing about the object.
func (r recorded) Get(ctx context.Context, key string) (objstore.Object, error) {
	begin := r.history.now()
	obj, err := r.Store.Get(ctx, key)
	if err == nil || errors.Is(err, objstore.ErrNotFound) {
		r.history.add(op{client: r.client, begin: begin, end: r.history.now(), token: string(obj.Token)})
	}
	return obj, err
}

// Put implements objstore.Store. If it fails with another error than ErrConflict or ErrIndeterminate, nothing was
// written, and the history gets no entry.
func (r recorded) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	sum := md5.Sum(body) //nolint:gosec // see the import
	o := op{client: r.client, put: true, token: hex.EncodeToString(sum[:]), begin: r.history.now()}
	if token, ok := cond.Token(); ok {
		o.condition = string(token)
	} else if !cond.Absent() {
		return "", errors.New("the lock is never written without a condition")
	}
	token, err := r.Store.Put(ctx, key, body, cond)
	o.end = r.history.now()
	switch {
	case key != r.history.key:
		return "", fmt.Errorf("%s was written, and not the lock", key)
	case err == nil && string(token) != o.token:
		return "", fmt.Errorf("token %s, want the MD5 sum %s", token, o.token)
	case errors.Is(err, objstore.ErrConflict):
		o.outcome = conflict
	case errors.Is(err, objstore.ErrIndeterminate):
		o.outcome, o.end = unknown, math.MaxInt64
	case err != nil:
		return token, err
	}
	r.history.add(o)
	if o.outcome == done {
		r.history.wrote(body)
	}
	return token, err
}

// wrote is called after each acknowledged write of the lock. It counts how often the lock gets a new heir, and how
// often an heir becomes leader.
func (h *history) wrote(body []byte) {
	lock, err := record.DecodeLock(body)
	if err != nil {
		return // no server could decode it either, and the test would fail
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case lock.Term < h.last.Term || lock.Term == h.last.Term && lock.Revision < h.last.Revision:
		return // the acknowledgment came late
	case lock.Term > h.last.Term && h.last.Heir == election.Peer{ID: lock.LeaderID, Incarnation: lock.Incarnation}:
		h.inherited++
	}
	if lock.Heir != (election.Peer{}) && lock.Heir != h.last.Heir {
		h.named++
	}
	h.last = lock
}

// lock returns the last lock that was written.
func (h *history) lock() record.Lock {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// heirs returns how often the lock got a new heir, and how often an heir took over.
func (h *history) heirs() (named, inherited int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.named, h.inherited
}

func (h *history) now() int64 { return int64(h.clock.Now()) }

func (h *history) add(o op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// settled decides which writes with an unknown result took effect. Every write of the lock requires a certain current
// version, and a replaced version never returns. So of all requests that write the same new version, at most one takes
// effect:
//
//   - If one of these requests was acknowledged, it took effect.
//   - If none was acknowledged, but a client has seen the new version, the earliest of the requests took effect.
//   - Otherwise none took effect.
func settled(ops []op) (out []op) {
	acknowledged := map[string]bool{}
	seen := map[string]int64{} // the latest time at which a version can have been written
	note := func(token string, end int64) {
		if at, ok := seen[token]; token != "" && (!ok || end < at) {
			seen[token] = end
		}
	}
	for _, o := range ops {
		switch {
		case !o.put:
			note(o.token, o.end)
		case o.outcome == done:
			acknowledged[o.token] = true
			note(o.condition, o.end)
		}
	}
	for changed := true; changed; { // if an unknown write was seen, the version that it replaced existed, too
		changed = false
		for _, o := range ops {
			at, ok := seen[o.token]
			if before, known := seen[o.condition]; o.put && o.outcome == unknown && ok && o.condition != "" &&
				(!known || before > at) {
				seen[o.condition], changed = at, true
			}
		}
	}
	first := map[string]op{}
	for _, o := range ops {
		if o.outcome != unknown {
			out = append(out, o)
			continue
		}
		if at, ok := seen[o.token]; ok && !acknowledged[o.token] {
			if f, there := first[o.token]; !there || o.begin < f.begin {
				o.outcome, o.end = done, at
				first[o.token] = o
			}
		}
	}
	for _, o := range first {
		out = append(out, o)
	}
	return out
}

// register models an object with conditional puts. Its state is the token of its content.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		o, ok := input.(op)
		switch {
		case !ok:
			panic("not an op")
		case !o.put:
			return state == o.token, state
		case o.outcome == conflict:
			return state != o.condition, state
		}
		return state == o.condition, o.token
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) string { return fmt.Sprint(input) },
}

// check fails the test if the object did not behave like a linearizable register.
func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var operations []porcupine.Operation
	counts := map[string]int{}
	for _, o := range h.ops {
		switch {
		case !o.put:
			counts["reads"]++
		default:
			counts[[...]string{"writes", "conflicts", "unknown"}[o.outcome]]++
		}
	}
	for i, o := range settled(h.ops) {
		// Porcupine expects that the calls of one client do not overlap. But a write that takes effect late overlaps
		// the client's next call. So each call gets a separate client.
		operations = append(operations, porcupine.Operation{ClientId: i, Input: o, Call: o.begin, Output: nil,
			Return: o.end})
	}
	t.Logf("history: %v", counts)
	if result := porcupine.CheckOperationsTimeout(register, operations, checkTimeout); result != porcupine.Ok {
		for _, o := range h.ops {
			t.Log(o)
		}
		t.Errorf("the lock's history of %d requests is not linearizable: %v", len(operations), result)
	}
}
