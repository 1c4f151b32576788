// Package mem is the in-memory object store for tests and the simulator. An injected function decides about the faults
// of each request.
//
// Invariant: the same requests and the same faults in the same order give the same answers. The package starts no
// goroutines and does not sleep by itself. Tokens are content hashes, so two writes of equal bytes have equal tokens.
// So an equal token does not prove that nothing was written.
package mem

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Op is a kind of request.
type Op string

// The kinds of requests.
const (
	Get    Op = "get"
	Put    Op = "put"
	Delete Op = "delete"
	List   Op = "list"
)

// Request describes a request to the store. The function Options.Inject must not change or keep Body.
type Request struct {
	Seq  uint64 // 1 for the first request on this store
	Op   Op
	Key  string // for List, the prefix
	Body []byte // only for Put
	Cond objstore.Condition
}

// Held is the value of Fault.Late for a write that takes effect only when Land is called.
const Held = -1

// Fault is the fault of one request. The zero Fault means that there is none.
type Fault struct {
	// Err makes the request fail without any effect. For a put that is lost in transit, use objstore.ErrIndeterminate.
	Err error
	// Before and After are the times to wait before and after the request's effect. The store waits with Options.Sleep.
	Before, After time.Duration
	// Lost makes a put or delete take effect although the caller gets an error. The error of a put is ErrIndeterminate.
	Lost bool
	// Late delays the effect of a put or delete past this number of later requests. The effect comes before the next
	// request after these, or when Land is called. A put takes effect only if its condition still holds at that moment.
	// The caller gets ErrIndeterminate immediately.
	Late int
	// Stale makes a List leave out this number of the latest writes (at most 256).
	Stale int
}

// Options configures a Store. All fields are optional.
type Options struct {
	// Inject is called for each request, with no lock held. If all requests come from one goroutine, Inject gets them
	// in the order of Request.Seq.
	Inject func(context.Context, Request) Fault
	// Sleep waits. An error means that ctx ended first. Without Sleep, waits take no time.
	Sleep func(context.Context, time.Duration) error
	// Now returns the modification times of objects. The default is time.Now.
	Now func() time.Time
	// Changed is called for each write and delete when it takes effect, under the store's lock. body is nil for a
	// delete. Changed must neither call the store nor keep body.
	Changed func(key string, body []byte)
}

// history is the maximum number of writes that a stale list may lag behind.
const history = 256

// Store implements objstore.Store. Make it with New.
type Store struct {
	opts Options

	mu      sync.Mutex
	objects map[string]object
	keys    []string // sorted
	undo    []change // the last writes, newest last
	held    []held
	seq     uint64
}

type object struct {
	body     []byte
	token    objstore.Token
	modified time.Time
}

// change holds the state that a write replaced.
type change struct {
	key     string
	before  object
	existed bool
}

// held is a write that takes effect later.
type held struct {
	due  uint64 // takes effect before the request with this number; 0 means only in Land
	req  Request
	body []byte
}

// New returns an empty store.
func New(opts ...Options) *Store {
	s := &Store{objects: map[string]object{}}
	for _, o := range opts {
		s.opts = o
	}
	if s.opts.Now == nil {
		s.opts.Now = time.Now
	}
	return s
}

// Land applies all held and late writes now, oldest first. It returns the number of writes that took effect.
func (s *Store) Land() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.land(func(held) bool { return true })
}

// Pending returns the number of writes that may still take effect.
func (s *Store) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (objstore.Object, error) {
	var obj objstore.Object
	err := s.do(ctx, Request{Op: Get, Key: key}, func(Fault) error {
		found, ok := s.objects[key]
		if !ok {
			return objstore.ErrNotFound
		}
		obj = objstore.Object{Key: key, Body: slices.Clone(found.body), Token: found.token}
		return nil
	})
	if err != nil {
		return objstore.Object{}, err
	}
	return obj, nil
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	req := Request{Op: Put, Key: key, Body: body, Cond: cond}
	if err := objstore.ValidatePut(key, cond); err != nil {
		return "", wrap(req, err)
	}
	var token objstore.Token
	err := s.do(ctx, req, func(Fault) error {
		if !s.holds(key, cond) {
			return objstore.ErrConflict
		}
		token = s.put(key, body)
		return nil
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.do(ctx, Request{Op: Delete, Key: key}, func(Fault) error {
		s.remove(key)
		return nil
	})
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	var entries []objstore.Entry
	err := s.do(ctx, Request{Op: List, Key: prefix}, func(f Fault) error {
		entries = s.list(prefix, f.Stale)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// do runs one request. It applies the injected fault, runs `effect` under the lock, and returns the error for the
// caller.
func (s *Store) do(ctx context.Context, req Request, effect func(Fault) error) error {
	if req.Op != List {
		if err := objstore.ValidateKey(req.Key); err != nil {
			return wrap(req, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return wrap(req, err)
	}
	s.mu.Lock()
	s.seq++
	req.Seq = s.seq
	s.land(func(h held) bool { return h.due != 0 && h.due <= req.Seq })
	s.mu.Unlock()

	var fault Fault
	if s.opts.Inject != nil {
		fault = s.opts.Inject(ctx, req)
	}
	writes := req.Op == Put || req.Op == Delete
	if err := s.sleep(ctx, fault.Before); err != nil {
		return s.ended(req, err)
	}
	if fault.Err != nil {
		return wrap(req, fault.Err)
	}
	if writes && fault.Late != 0 {
		s.hold(req, fault.Late)
		return s.ended(req, errors.New("injected: the write lands late"))
	}
	s.mu.Lock()
	err := effect(fault)
	s.mu.Unlock()
	if serr := s.sleep(ctx, fault.After); serr != nil {
		return s.ended(req, serr)
	}
	if writes && fault.Lost {
		return s.ended(req, errors.New("injected: the response is lost"))
	}
	if err != nil {
		return wrap(req, err)
	}
	return nil
}

// ended returns the error of a request that was sent but got no answer.
func (s *Store) ended(req Request, err error) error {
	if req.Op == Put {
		err = fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err)
	}
	return wrap(req, err)
}

func wrap(req Request, err error) error { return fmt.Errorf("mem: %s %q: %w", req.Op, req.Key, err) }

func (s *Store) sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 || s.opts.Sleep == nil {
		return nil
	}
	return s.opts.Sleep(ctx, d)
}

func (s *Store) hold(req Request, late int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := held{req: req, body: bytes.Clone(req.Body)}
	if late > 0 {
		h.due = req.Seq + uint64(late) + 1
	}
	s.held = append(s.held, h)
}

func (s *Store) land(due func(held) bool) (landed int) {
	if len(s.held) == 0 {
		return 0
	}
	rest := s.held[:0]
	for _, h := range s.held {
		switch {
		case !due(h):
			rest = append(rest, h)
		case h.req.Op == Delete:
			s.remove(h.req.Key)
			landed++
		case s.holds(h.req.Key, h.req.Cond):
			s.put(h.req.Key, h.body)
			landed++
		}
	}
	clear(s.held[len(rest):])
	s.held = rest
	return landed
}

func (s *Store) holds(key string, cond objstore.Condition) bool {
	current, exists := s.objects[key]
	return cond.Holds(current.token, exists)
}

func (s *Store) put(key string, body []byte) objstore.Token {
	s.remember(key)
	sum := sha256.Sum256(body)
	token := objstore.Token(hex.EncodeToString(sum[:16]))
	if _, exists := s.objects[key]; !exists {
		at, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Insert(s.keys, at, key)
	}
	s.objects[key] = object{body: bytes.Clone(body), token: token, modified: s.opts.Now()}
	if s.opts.Changed != nil {
		s.opts.Changed(key, body)
	}
	return token
}

func (s *Store) remove(key string) {
	if _, exists := s.objects[key]; !exists {
		return
	}
	s.remember(key)
	delete(s.objects, key)
	at, _ := slices.BinarySearch(s.keys, key)
	s.keys = slices.Delete(s.keys, at, at+1)
	if s.opts.Changed != nil {
		s.opts.Changed(key, nil)
	}
}

func (s *Store) remember(key string) {
	before, existed := s.objects[key]
	if len(s.undo) == history {
		s.undo = slices.Delete(s.undo, 0, 1)
	}
	s.undo = append(s.undo, change{key: key, before: before, existed: existed})
}

func (s *Store) list(prefix string, stale int) []objstore.Entry {
	// The list leaves out the last changes. `stale` is their number. For each of the changed keys, `past` has the state
	// before the first of these changes.
	past := map[string]change{}
	for i := len(s.undo) - 1; i >= 0 && i >= len(s.undo)-stale; i-- {
		past[s.undo[i].key] = s.undo[i]
	}
	var entries []objstore.Entry
	add := func(key string, o object) {
		entries = append(entries, objstore.Entry{Key: key, Token: o.token, Size: int64(len(o.body)),
			Modified: o.modified})
	}
	from, _ := slices.BinarySearch(s.keys, prefix)
	for _, key := range s.keys[from:] {
		if !strings.HasPrefix(key, prefix) {
			break
		}
		if _, changed := past[key]; !changed {
			add(key, s.objects[key])
		}
	}
	for key, c := range past {
		if c.existed && strings.HasPrefix(key, prefix) {
			add(key, c.before)
		}
	}
	if len(past) > 0 {
		slices.SortFunc(entries, func(a, b objstore.Entry) int { return strings.Compare(a.Key, b.Key) })
	}
	return entries
}
