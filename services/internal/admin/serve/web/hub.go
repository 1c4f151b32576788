package web

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// hub follows all shards. It knows the active alerts, counts replacements, and passes changes on to open pages. It is
// safe for concurrent use.
type hub struct {
	fleet *fleet.Fleet
	now   func() time.Time
	// ended is closed when the method run returns. The streams to open pages then end, too.
	ended chan struct{}

	mu     sync.Mutex
	shards map[string]*followed
	// changes is the number of changes so far, in all shards.
	changes uint64
	pages   map[*listener]struct{}
}

// followed is what the hub knows about one shard.
type followed struct {
	alerts map[alertKey]alert
	// lost is the time since which the hub does not receive the shard's events. It is zero if the hub receives them.
	lost    time.Time
	history history
}

// alert is an active error of a shard.
type alert struct {
	Shard string
	*nstancev1.ErrorEvent
}

type alertKey struct{ kind, group, id string }

// change is an event of a shard, or a change of the connection to the shard. If event and entry are nil, the connection
// was lost or restored.
type change struct {
	shard  string
	number uint64
	event  *fleet.Event
	entry  *nstancev1.JournalEvent
}

// listener receives the changes for one open page.
type listener struct {
	changes chan change
	// missed holds a value if the channel `changes` had no room for a change.
	missed chan struct{}
}

func newHub(f *fleet.Fleet, now func() time.Time) *hub {
	h := &hub{fleet: f, now: now, ended: make(chan struct{}), shards: map[string]*followed{},
		pages: map[*listener]struct{}{}}
	for _, shard := range f.Shards() {
		h.shards[shard] = &followed{alerts: map[alertKey]alert{}}
	}
	return h
}

// retryPause is the time between two attempts to follow a shard after a refusal or a lost stream of its journal.
const retryPause = 2 * time.Second

// run follows the shards until ctx ends, and then returns nil. Call it once.
func (h *hub) run(ctx context.Context) error {
	defer close(h.ended)
	var wg sync.WaitGroup
	for shard := range h.shards {
		wg.Go(func() { h.followState(ctx, shard) })
		wg.Go(func() { h.followJournal(ctx, shard) })
	}
	wg.Wait()
	return nil
}

func (h *hub) followState(ctx context.Context, shard string) {
	for ctx.Err() == nil {
		// FollowShards returns before ctx ends if a shard rejects this client, for example because the client's
		// identity has expired. Try again after a pause.
		h.fleet.FollowShards(ctx, []string{shard}, fleet.Watcher{
			Event: func(e fleet.Event) { h.addEvent(e) },
			Lost:  func(*fleet.Error, time.Duration) { h.setLost(shard, h.now()) },
			Found: func(shard string) { h.setLost(shard, time.Time{}) },
		})
		_ = tasks.Sleep(ctx, retryPause)
	}
}

func (h *hub) followJournal(ctx context.Context, shard string) {
	var position string
	read := false
	for ctx.Err() == nil {
		filter := &nstancev1.EventFilter{Since: timestamppb.New(h.now().Add(-keepTime))}
		if !read {
			position, read = h.readJournal(ctx, shard, filter)
		}
		if !read {
			_ = tasks.Sleep(ctx, retryPause)
			continue
		}
		// The errors are ignored, because followState records why a shard cannot be followed.
		h.fleet.FollowJournals(ctx, []string{shard}, filter, map[string]string{shard: position}, fleet.Watcher{
			Lost: func(*fleet.Error, time.Duration) {}, Found: func(string) {},
		}, func(e fleet.Entry) {
			position = e.GetPosition()
			h.mu.Lock()
			defer h.mu.Unlock()
			h.shards[shard].history.add(shard, e.JournalEvent)
			h.publish(change{shard: shard, entry: e.JournalEvent})
		})
		_ = tasks.Sleep(ctx, retryPause)
	}
}

// readJournal reads the stored events of a shard's journal. It returns the position of the last one.
func (h *hub) readJournal(ctx context.Context, shard string, filter *nstancev1.EventFilter) (position string, ok bool) {
	answer := fleet.Call(ctx, h.fleet, []string{shard}, fleet.Client.ListEvents,
		&nstancev1.ListEventsRequest{Filter: filter})[0]
	if answer.Err != nil {
		return "", false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	of := &h.shards[shard].history
	for _, e := range answer.Message.GetEvents() {
		of.add(shard, e)
		position = e.GetPosition()
	}
	if of.read = true; position != "" {
		h.publish(change{shard: shard})
	}
	return position, true
}

func (h *hub) addEvent(e fleet.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.shards[e.Shard]
	if !s.lost.IsZero() { // the first event after the shard refused
		s.lost = time.Time{}
		h.publish(change{shard: e.Shard})
	}
	if err := e.Error.Of; err != nil {
		key := alertKey{err.GetKind(), err.GetGroup(), err.GetInstanceId()}
		if err.GetResolved() {
			delete(s.alerts, key)
		} else {
			s.alerts[key] = alert{e.Shard, err}
		}
	}
	if e.Snapshot {
		return
	}
	h.publish(change{shard: e.Shard, event: &e})
}

// setLost records since when a shard cannot be followed. The zero time means that the shard is followed again. setLost
// also forgets the shard's alerts. A new connection begins with the alerts that are active then.
func (h *hub) setLost(shard string, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.shards[shard]
	if s.lost.IsZero() || since.IsZero() {
		s.lost = since
	}
	clear(s.alerts)
	h.publish(change{shard: shard})
}

// publish sends a change to all open pages. The caller must hold mu.
func (h *hub) publish(c change) {
	h.changes++
	c.number = h.changes
	for l := range h.pages {
		select {
		case l.changes <- c:
		default:
			select {
			case l.missed <- struct{}{}:
			default:
			}
		}
	}
}

// listenerRoom is the number of changes that can wait for a slow browser. If more changes wait, the browser reads the
// whole page again.
const listenerRoom = 256

// listen adds a listener. number is the number of the last change before the listener was added. end removes the
// listener.
func (h *hub) listen() (l *listener, number uint64, end func()) {
	l = &listener{changes: make(chan change, listenerRoom), missed: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pages[l] = struct{}{}
	return l, h.changes, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.pages, l)
	}
}

// lastChange returns the number of the last change.
func (h *hub) lastChange() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changes
}

// alerts returns the sorted active alerts of a shard, or of one group if group is not empty.
func (h *hub) alerts(shard, group string) []alert {
	h.mu.Lock()
	defer h.mu.Unlock()
	var alerts []alert
	for key, active := range h.shards[shard].alerts {
		if group == "" || key.group == group {
			alerts = append(alerts, active)
		}
	}
	slices.SortFunc(alerts, func(a, b alert) int {
		return strings.Compare(fmt.Sprintln(a.GetGroup(), a.GetKind(), a.GetInstanceId()),
			fmt.Sprintln(b.GetGroup(), b.GetKind(), b.GetInstanceId()))
	})
	return alerts
}

// lost returns the time since which the shard cannot be followed.
func (h *hub) lost(shard string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shards[shard].lost
}

// read calls f with the history of a shard. f must not keep the history, but may keep finished replacements, which do
// not change.
func (h *hub) read(shard string, f func(*history)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.shards[shard].history)
}
