package sim

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// bucket holds the instance records of the shard as the store really has them, regardless of the faults that clients
// see. It checks each new version of a record.
type bucket struct {
	world   *World
	records map[string]*document // by key; removed records stay in the map
	byID    map[ident.ID]*document
	order   []*document // in the order of their first write
	written map[attempt]bool
}

// document holds the fields of a record that the checks need. The code under test decodes and validates the rest.
type document struct {
	ID           ident.ID          `json:"id"`
	State        record.State      `json:"state"`
	Revision     uint64            `json:"revision"`
	Term         uint64            `json:"term"`
	ReservedTerm uint64            `json:"reserved_term"`
	Writer       string            `json:"writer"`
	Tenant       string            `json:"tenant"`
	Group        string            `json:"group"`
	OnDemand     bool              `json:"on_demand"`
	Spot         bool              `json:"spot"`
	Image        string            `json:"image"`
	ProviderID   string            `json:"provider_id"`
	PublicKey    []byte            `json:"public_key"`
	NonceID      string            `json:"nonce_id"`
	Reason       string            `json:"delete_reason"`
	DeletingAt   time.Time         `json:"deleting_at"`
	Deadline     time.Time         `json:"delete_deadline"`
	DeletedAt    time.Time         `json:"deleted_at"`
	Preserved    *record.Preserved `json:"preserved"`
	Spare        *record.Spare     `json:"spare"`
	InfraHash    string            `json:"infra_config_hash"`
	RegisteredAt time.Time         `json:"registered_at"`
	CreatedAt    time.Time         `json:"created_at"`

	removed bool
	// doubtful means that a server does not know whether its write of the decision to delete the instance took effect.
	doubtful bool
	decided  decision  // to delete it
	since    time.Time // when this version took effect
}

// decision is the time at which the decision to delete an instance took effect, and the term in which a leader made it.
type decision struct {
	term uint64
	at   time.Time
}

// attempt identifies one write. A write that is sent twice is the same attempt.
type attempt struct {
	key      string
	revision uint64
	writer   string
}

var recordPrefix = keys.InstancePrefix(shardName)

func (b *bucket) parse(key string, body []byte) (d document, ok bool) {
	if err := json.Unmarshal(body, &d); err != nil {
		b.world.fail(ruleOneLife, "%s cannot be read: %v", key, err)
		return document{}, false
	}
	return d, true
}

// entered checks a server's write of a record when the server sends it. The server has made its decision at that time,
// even if the write never takes effect.
func (b *bucket) entered(s *server, r mem.Request) {
	if !strings.HasPrefix(r.Key, recordPrefix) {
		return
	}
	next, ok := b.parse(r.Key, r.Body)
	if !ok {
		return
	}
	if id := (attempt{r.Key, next.Revision, next.Writer}); !b.written[id] {
		b.written[id] = true
		if b.records[r.Key] == nil && next.State == record.Deleted {
			b.world.checkOrphan(s, &next)
		}
		switch have := b.records[r.Key]; {
		case have == nil:
		case have.stays() && next.State == record.Deleting:
			b.world.checkRemoval(s, have, &next)
		case have.isSpare() && next.Spare != nil && !next.isSpare():
			b.world.checkPromotion(s, have, &next)
		case have.counts() && next.stays() && next.Preserved != nil:
			next.Reason = next.Preserved.Reason
			b.world.checkPreserve(s, have, &next)
			b.world.checkRemoval(s, have, &next)
		}
		if next.State == record.Deleted {
			b.world.checkNeverMade(s, &next)
		}
		if s != nil && s.fooled {
			b.world.fooledAt = b.world.sched.now
		}
	}
}

// doubt notes that a server does not know whether its write of a record took effect.
func (b *bucket) doubt(key string, body []byte) {
	if have := b.records[key]; have != nil && strings.HasPrefix(key, recordPrefix) {
		next, _ := b.parse(key, body)
		have.doubtful = have.doubtful || next.State == record.Deleting || next.Preserved != nil && have.Preserved == nil
	}
}

func (d *document) key() config.GroupKey { return config.GroupKey{Tenant: d.Tenant, Group: d.Group} }

// stays reports whether the instance exists or is being created, and is not being deleted.
func (d *document) stays() bool {
	return !d.removed && (d.State == record.Created || d.State == record.Registered)
}

// changed checks a new version of a record when the write of that version takes effect.
func (b *bucket) changed(key string, body []byte) {
	if !strings.HasPrefix(key, recordPrefix) {
		return
	}
	w, have := b.world, b.records[key]
	if body == nil {
		if have == nil || have.removed {
			return
		}
		if have.State != record.Deleted {
			w.fail(ruleTombstone, "the record of %s is removed in state %s", have.ID, have.State)
		}
		least := retention
		if have.Group == "" {
			least = unusedRetention
		}
		if age := w.sched.now.Sub(have.DeletedAt); age < least-2*wallSkew {
			w.fail(ruleTombstone, "the tombstone of %s is removed after %v", have.ID, age)
		}
		have.removed = true
		return
	}
	next, ok := b.parse(key, body)
	if !ok {
		return
	}
	next.since = w.sched.now
	if w.restless() {
		w.fail(ruleQuiet, "the record of %s is written after everything had come to rest: %s, %s", next.ID, next.State,
			next.Reason)
	}
	if have == nil {
		if next.State != record.Reserved && next.State != record.Deleted {
			w.fail(ruleOneLife, "the first record of %s has state %s", next.ID, next.State)
		}
		if b.byID[next.ID] != nil {
			w.fail(ruleOneLife, "%s has two records", next.ID)
		}
		d := next
		b.records[key], b.byID[next.ID] = &d, &d
		b.order = append(b.order, &d)
		return
	}
	b.checkStep(have, &next)
	next.removed, next.decided, next.doubtful = false, have.decided, have.doubtful
	if have.counts() && !next.counts() || have.isSpare() && have.stays() && !next.stays() {
		next.decided = decision{next.Term, w.sched.now}
	}
	*have = next
	w.fleet.recorded(have)
}

// lives contains a number for each state of a record, in the order in which an instance passes through the states. The
// code under test has this order too, but the simulation must not rely on that code.
var lives = map[record.State]int{record.Reserved: 1, record.Created: 2, record.Registered: 3, record.Deleting: 4,
	record.Deleted: 5}

func forward(from, to record.State) bool { return lives[to] > lives[from] }

// checkStep compares a record with its previous version.
func (b *bucket) checkStep(have, next *document) {
	w := b.world
	switch {
	case have.removed && next.State != record.Deleted:
		w.fail(ruleOneLife, "%s lives a second time, as %s", have.ID, next.State)
	case have.removed:
	case next.Revision != have.Revision+1:
		w.fail(ruleOneLife, "the record of %s goes from revision %d to %d", have.ID, have.Revision, next.Revision)
	case next.Term < have.Term:
		w.fail(ruleOneLife, "the record of %s goes back from term %d to %d", have.ID, have.Term, next.Term)
	case next.ReservedTerm != have.ReservedTerm:
		w.fail(ruleOneLife, "the record of %s was reserved in term %d, and now in %d", have.ID, have.ReservedTerm,
			next.ReservedTerm)
	case next.State != have.State && !forward(have.State, next.State):
		w.fail(ruleOneLife, "the record of %s goes from %s to %s", have.ID, have.State, next.State)
	case have.Group != "" && next.Group != have.Group:
		w.fail(ruleOneLife, "%s moves from group %s to %s", have.ID, have.Group, next.Group)
	case have.ProviderID != "" && next.ProviderID != have.ProviderID:
		w.fail(ruleOneVM, "%s has VM %s, and now %s", have.ID, have.ProviderID, next.ProviderID)
	case len(have.PublicKey) > 0 && (!bytes.Equal(next.PublicKey, have.PublicKey) || next.NonceID != have.NonceID):
		w.fail(ruleOneKey, "the nonce of %s is consumed twice", have.ID)
	case have.Preserved != nil && (next.Preserved == nil || !next.Preserved.At.Equal(have.Preserved.At)):
		w.fail(rulePreserve, "%s is preserved since %v, and now %+v", have.ID, have.Preserved.At, next.Preserved)
	case have.Group != "" && (have.Spare == nil) != (next.Spare == nil):
		w.fail(ruleSpares, "%s was created as a spare: %t, and now %t", have.ID, have.Spare != nil, next.Spare != nil)
	case have.Spare != nil && !have.isSpare() && !next.Spare.PromotedAt.Equal(have.Spare.PromotedAt):
		w.fail(ruleSpares, "%s became a member at %v, and again at %v", have.ID, have.Spare.PromotedAt,
			next.Spare.PromotedAt)
	case have.Spare != nil && (have.Spare.Sleep != next.Spare.Sleep ||
		!have.Spare.AsleepAt.Equal(next.Spare.AsleepAt) && !(have.isSpare() && have.Spare.AsleepAt.IsZero())):
		w.fail(ruleSpares, "the sleep of %s was %+v, and is now %+v", have.ID, *have.Spare, *next.Spare)
	case have.State == record.Deleting && next.State == record.Deleting && next.Deadline.After(have.Deadline):
		w.fail(ruleDrain, "the deadline of %s moves from %v to %v", have.ID, have.Deadline, next.Deadline)
	}
}
