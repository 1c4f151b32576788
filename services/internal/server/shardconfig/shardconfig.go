// Package shardconfig manages the configuration that is in force on a shard. It reads the bucket, refuses an invalid
// configuration, and passes a valid one to the leader. It is the only writer of the dynamic groups.
//
// Invariant: a configuration in force has passed validation, and no leader acts on a configuration older than one that
// an earlier leader applied.
package shardconfig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Result is the result of a check for a newer configuration.
type Result uint8

const (
	Unchanged Result = iota
	Updated
	Invalid
	// Restart means that the new configuration is valid but needs a restart of the server.
	Restart
)

// ErrRestart means that the configuration in the bucket has changes that only a new process can apply.
var ErrRestart = errors.New("the configuration needs a restart of the server")

// ErrForSuccessor is the error of a [Trial] if the configuration is for the servers that will replace this one. For
// example, the configuration moves the leader's address to another network interface.
var ErrForSuccessor = errors.New("the configuration is for servers that replace this one")

// Status describes the configuration in force and the refused one.
type Status struct {
	ETag       string
	Size       int
	Generation uint64
	// RestartETag is the ETag of a newer, valid document that needs a new process.
	RestartETag string
	// RefusedETag and Problems describe a newer document that was refused.
	RefusedETag string
	Problems    config.Problems
}

// Applier puts configurations in force on a leader. The Manager calls one method at a time. The methods must not call a
// Manager method that changes anything, and must not modify the maps.
type Applier interface {
	// ApplyConfig puts a configuration in force, with all its merged groups.
	ApplyConfig(shard *config.Shard, groups map[config.GroupKey]config.Group)
	// ApplyGroups puts changed groups in force. groups holds all merged groups. changed lists the groups that differ
	// from the last call. A group that is in changed but not in groups no longer exists. An operator's request may wait
	// for ApplyGroups, so ApplyGroups must not use the network.
	ApplyGroups(groups map[config.GroupKey]config.Group, changed []config.GroupKey)
	// OverridesEnded is told which values of operators in a static group have ended, one line for each.
	OverridesEnded(key config.GroupKey, lines []string)
}

// Manager holds the configuration in force. It is safe for concurrent use, and changes groups one at a time.
type Manager struct {
	bucket *clusterstate.State
	name   string // of the shard
	log    *slog.Logger
	trial  Trial
	// signed returns the State with the keys that sign and verify the applied configuration.
	signed func() *clusterstate.State
	// rehearses means that this Manager writes nothing. See [Manager.Rehearse].
	rehearses bool

	changing sync.Mutex // held for a read-modify-write of the bucket's documents; readers need only mu

	mu      sync.Mutex
	inForce inForce
}

// inForce is the state of a Manager. Its maps are never changed, so that a copy can be used without the lock.
type inForce struct {
	current          objstore.Object // the configuration
	shard            *config.Shard   // with defaults filled in
	groups           dynamic
	rollouts         map[config.GroupKey]clusterstate.StoredRollout // empty while not leading
	merged           map[config.GroupKey]config.Group
	generation       uint64
	restart, refused objstore.Object
	looked           objstore.Token  // of the configuration that Refresh examined last
	pending          *config.Shard   // the configuration in restart, with defaults filled in
	successor        *config.Shard   // returned by Successor
	problems         config.Problems // of refused, errors only
	applier          Applier         // nil while not leading
	term             uint64
}

// view returns the present state.
func (m *Manager) view() inForce {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inForce
}

// update changes the state.
func (m *Manager) update(change func(*inForce)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.inForce)
}

// Trial opens whatever a configuration needs and this server has not opened yet: the provider, the cluster's bucket,
// the secrets store, the encryption keys. It does not put them to use. If this server cannot run with the
// configuration, Trial returns the reason as an error. The defaults in shard are filled in. If `applied` is true, a
// leader has run with the configuration, and an error means that something is missing on this server.
type Trial func(ctx context.Context, shard *config.Shard, applied bool) error

// SetSigned sets the function that returns the State with the keys for the applied configuration. A trial opens these
// keys, so the Manager calls the function only after a trial. Call SetSigned before any other method. By default, the
// Manager uses the State that was passed to [New].
func (m *Manager) SetSigned(signed func() *clusterstate.State) { m.signed = signed }

// SetTrial sets the trial that every configuration must pass before it is put in force or recorded as applied. Call it
// before any other method.
func (m *Manager) SetTrial(trial Trial) { m.trial = trial }

// New returns a Manager of a shard without a configuration in force.
func New(bucket *clusterstate.State, shard string, log *slog.Logger) *Manager {
	return &Manager{bucket: bucket, name: shard, log: log, signed: func() *clusterstate.State { return bucket }}
}

// Rehearse returns a Manager with the same configuration and groups, whose changes reach neither the bucket nor an
// applier.
func (m *Manager) Rehearse() *Manager {
	copied := &Manager{bucket: m.bucket, name: m.name, log: slog.New(slog.DiscardHandler), signed: m.signed,
		rehearses: true, inForce: m.view()}
	copied.inForce.applier = nil
	return copied
}

// Configure puts a configuration in force in a Manager that rehearses. It returns Restart if a leader would restart to
// apply the configuration, and Invalid with the problems if the leader would refuse it. Unlike [Manager.Refresh], it
// does not check that this server can run the configuration.
func (m *Manager) Configure(body []byte) (Result, config.Problems) {
	now := m.view()
	next := m.parse(objstore.Object{Body: body}, now.groups, false)
	problems := next.problems()
	if next.err == nil {
		problems = m.newlyBroken(now.shard, next.shard, now.groups)
	}
	if problems = problems.Errors(); len(problems) > 0 {
		return Invalid, problems
	}
	m.adopt(next)
	if !InPlace(now.shard, m.Shard()) {
		return Restart, nil
	}
	return Updated, nil
}

// Load reads and validates the configuration in the bucket, for a server that does not lead. It writes nothing. If the
// configuration is invalid, Load puts the last applied one in force. Without an applied one, it returns the problems as
// its error.
func (m *Manager) Load(ctx context.Context) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	_, err := m.begin(ctx, nil)
	return err
}

// Lead reads the configuration and the groups again for a leader of the given term. It passes them and every later
// change to applier. If the configuration is refused, Lead uses the last applied one. It does the same if the server
// must restart to use the configuration, which is then [Manager.Pending]. If the server must restart even to use the
// last applied configuration, Lead returns ErrRestart.
func (m *Manager) Lead(ctx context.Context, term uint64, applier Applier) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	before := m.view().shard
	m.update(func(f *inForce) { f.applier, f.term, f.generation, f.rollouts = nil, term, 0, nil })
	doc, err := m.begin(ctx, before)
	if err != nil {
		return err
	}
	// Servers fall back to the applied configuration. So this process must not record one with which it cannot run.
	if before != nil && !InPlace(before, m.Shard()) {
		return ErrRestart
	}
	if err := m.signed().WriteApplied(ctx, doc.Body, doc.Token, term); err != nil {
		return err
	}
	rollouts, err := m.loadRollouts(ctx)
	if err != nil {
		return err
	}
	now := m.view()
	merged := m.merge(now.shard, now.groups, rollouts)
	m.update(func(f *inForce) { f.applier, f.rollouts, f.merged = applier, rollouts, merged })
	m.applyConfig()
	m.dropEnded(ctx, time.Time{})
	return nil
}

// Successor returns the newest configuration if this server cannot run with it, but the servers that will replace this
// one can. Otherwise it returns nil. The defaults are filled in.
func (m *Manager) Successor() *config.Shard { return m.view().successor }

// Pending returns the newest configuration, with defaults filled in, if it is valid and needs a restart of this server.
// Otherwise it returns nil.
func (m *Manager) Pending() *config.Shard { return m.view().pending }

// noteSuccessor reports whether c is only for servers that will replace this one. If so, it stores c's configuration.
func (m *Manager) noteSuccessor(c *candidate) bool {
	is := errors.Is(c.err, ErrForSuccessor)
	var successor *config.Shard
	if is {
		successor = c.shard.WithDefaults()
	}
	m.update(func(f *inForce) { f.successor = successor })
	return is
}

// candidate is a configuration that may be put in force.
type candidate struct {
	doc    objstore.Object
	shard  *config.Shard
	groups dynamic
	// err means that the configuration is invalid, or that this server cannot run it. broken lists the problems of
	// dynamic groups that do not fit the configuration.
	err    error
	broken config.Problems
}

// parse parses a configuration and merges it with dynamic groups. If `applied` is true, a leader has run with doc.
func (m *Manager) parse(doc objstore.Object, groups dynamic, applied bool) candidate {
	c := candidate{doc: doc, groups: groups}
	var problems config.Problems
	if applied {
		c.shard, problems = config.ParseApplied("config", doc.Body)
	} else {
		c.shard, problems = config.ParseStored("config", doc.Body)
	}
	if c.err = problems.Err(); c.err != nil {
		return c
	}
	for _, problem := range problems.Warnings() {
		m.log.Warn("configuration", "problem", problem.String())
	}
	c.broken = m.broken(c.shard, groups)
	return c
}

// try runs the trial of a valid configuration that is not in force already. If `applied` is true, a leader has run with
// the configuration.
func (m *Manager) try(ctx context.Context, c *candidate, applied bool) {
	current := m.view().current.Token
	if c.err == nil && (current == "" || current != c.doc.Token) && m.trial != nil {
		c.err = m.trial(ctx, c.shard.WithDefaults(), applied)
	}
}

// verifyApplied refuses an applied configuration that the cluster's CA has not signed.
func (m *Manager) verifyApplied(ctx context.Context, c *candidate) {
	if c.err != nil {
		return
	}
	applied, err := m.signed().ReadApplied(ctx)
	if err == nil && string(applied.Body) != string(c.doc.Body) {
		err = errors.New("the applied configuration has changed since it was read")
	}
	if err != nil {
		m.log.Error("the applied configuration is refused", "etag", string(c.doc.Token), "error", err)
		c.err = err
	}
}

// problems returns everything that is wrong with the configuration.
func (c *candidate) problems() config.Problems {
	if c.err != nil {
		return problemsOf(c.err)
	}
	return c.broken
}

// begin puts the bucket's configuration in force, or the last applied one if the bucket's is refused. The running
// configuration is the one with which this server has started. If the bucket's configuration needs a restart and no
// leader has applied it, begin puts the last applied one in force, provided that this one needs no restart.
func (m *Manager) begin(ctx context.Context, running *config.Shard) (objstore.Object, error) {
	doc, err := m.readConfig(ctx)
	if err != nil {
		return objstore.Object{}, err
	}
	m.update(func(f *inForce) { f.groups = dynamic{} }) // groups of an earlier term do not count
	groups, err := m.readGroups(ctx)
	if err != nil {
		return objstore.Object{}, err
	}
	// The applied configuration is verified after the trial, which opens the cluster's keys.
	applied, err := m.bucket.UnverifiedApplied(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return objstore.Object{}, err
	}
	isApplied := err == nil && string(applied.Body) == string(doc.Body)
	newest := m.parse(doc, groups, isApplied)
	m.try(ctx, &newest, isApplied)
	forSuccessor := m.noteSuccessor(&newest)
	appliedDoc := objstore.Object{Body: applied.Body, Token: objstore.Token(applied.Source)}
	if len(newest.problems()) == 0 {
		m.refuse(objstore.Object{}, nil)
		if next := newest.shard.WithDefaults(); running != nil && err == nil && !isApplied && !InPlace(running, next) {
			before := m.parse(appliedDoc, groups, true)
			m.try(ctx, &before, true)
			m.verifyApplied(ctx, &before)
			if before.err == nil && InPlace(running, before.shard.WithDefaults()) {
				m.adopt(before)
				m.update(func(f *inForce) { f.restart, f.pending, f.looked = doc, next, doc.Token })
				return before.doc, nil
			}
		}
		m.adopt(newest)
		return doc, nil
	}
	if err == nil && !isApplied {
		before := m.parse(appliedDoc, groups, true)
		better := newest.err != nil || len(before.broken) < len(newest.broken)
		if better { // the last trial that passes must be that of the configuration in force
			m.try(ctx, &before, true)
			m.verifyApplied(ctx, &before)
		}
		switch {
		case better && before.err == nil && forSuccessor:
			m.log.Info("the newest configuration is for servers that replace this one: the one that was applied last "+
				"stays in force", "newest_etag", string(doc.Token), "etag", applied.Source)
			m.refuse(objstore.Object{}, nil)
			m.adopt(before)
			return before.doc, nil
		case better && before.err == nil:
			m.log.Warn("the newest configuration is refused: the one that was applied last stays in force",
				"refused_etag", string(doc.Token), "etag", applied.Source)
			m.refuse(doc, newest.problems())
			m.adopt(before)
			return before.doc, nil
		case before.err != nil && newest.err != nil:
			return objstore.Object{}, fmt.Errorf("neither the configuration nor the applied one can be used:\n%w\n%w",
				newest.err, before.err)
		}
	}
	if newest.err != nil {
		return objstore.Object{}, newest.err
	}
	// There is no better configuration than this one. Use it, although the leader cannot create some of its groups.
	for _, problem := range newest.broken {
		m.log.Warn("some groups cannot be created", "problem", problem.String())
	}
	m.refuse(objstore.Object{}, nil)
	m.adopt(newest)
	return doc, nil
}

// Follow tells the Manager that this server no longer leads. The Manager then passes no more changes to the applier.
func (m *Manager) Follow() { m.update(func(f *inForce) { f.applier = nil }) }

// dynamic is the document of the dynamic groups as read from the bucket.
type dynamic struct {
	groups config.Groups
	token  objstore.Token
}

func (m *Manager) readConfig(ctx context.Context) (objstore.Object, error) {
	body, token, err := m.bucket.ReadConfig(ctx, m.name)
	return objstore.Object{Body: body, Token: token}, err
}

// readGroups reads the dynamic groups. If their document has disappeared during this term, readGroups logs an error and
// returns the known groups. Without them, the leader would delete their instances.
func (m *Manager) readGroups(ctx context.Context) (dynamic, error) {
	groups, token, warnings, err := m.bucket.ReadGroups(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		known := m.view().groups
		if known.token != "" {
			m.log.Error(
				"the dynamic groups are gone from the bucket; those known stay in force and are written again with " +
					"the next change")
		}
		return dynamic{known.groups, ""}, nil
	}
	if err != nil {
		return dynamic{}, err
	}
	for _, warning := range warnings {
		m.log.Warn("dynamic groups", "problem", warning.String())
	}
	return dynamic{groups, token}, nil
}

// broken returns the problems of dynamic groups that do not fit the configuration. The configuration without these
// groups is valid.
func (m *Manager) broken(shard *config.Shard, d dynamic) config.Problems {
	_, problems := shard.Merged(d.groups)
	for i := range problems {
		problems[i].File = "groups"
	}
	return problems.Errors()
}

// adopt puts a valid configuration in force together with dynamic groups.
func (m *Manager) adopt(c candidate) {
	full := c.shard.WithDefaults()
	merged := m.merge(full, c.groups, m.view().rollouts)
	m.update(func(f *inForce) {
		f.current, f.shard, f.groups, f.merged = c.doc, full, c.groups, merged
		f.restart, f.pending = objstore.Object{}, nil
		f.generation++
	})
}

// merge combines the configured groups with the dynamic groups, and with what is stored about their rollouts. It logs
// the problems that it finds in the dynamic groups.
func (m *Manager) merge(shard *config.Shard, d dynamic,
	rollouts map[config.GroupKey]clusterstate.StoredRollout) map[config.GroupKey]config.Group {
	merged, problems := shard.Merged(d.groups)
	for key, r := range rollouts {
		if g, ok := merged[key]; ok {
			merged[key] = shard.WithRollout(g, r.Rollout)
		}
	}
	for _, problem := range problems {
		m.log.Warn("dynamic groups", "problem", problem.String())
	}
	return merged
}

// record stores doc and the present term in the bucket as the applied configuration, from which the next leader starts.
// If the bucket already has the same document and term, record writes nothing.
func (m *Manager) record(ctx context.Context, doc objstore.Object) error {
	term := m.view().term
	if have, err := m.signed().ReadApplied(ctx); err == nil && have.Term == term && have.Source == string(doc.Token) &&
		string(have.Body) == string(doc.Body) {
		return nil
	}
	return m.signed().WriteApplied(ctx, doc.Body, doc.Token, term)
}

// refuse stores which configuration is refused, and its problems. An empty doc means that none is refused. refuse logs
// each problem of a configuration once.
func (m *Manager) refuse(doc objstore.Object, problems config.Problems) {
	known := m.view()
	m.update(func(f *inForce) { f.refused, f.problems = doc, problems })
	if known.refused.Token == doc.Token && known.problems.Error() == problems.Error() {
		return
	}
	for _, problem := range problems {
		m.log.Warn("configuration refused", "etag", string(doc.Token), "problem", problem.String())
	}
}

// Changed reports whether the bucket has another configuration than the one that [Manager.Refresh] examined last, or
// before that, than the one in force. It makes one request and changes nothing.
func (m *Manager) Changed(ctx context.Context) (bool, error) {
	doc, err := m.readConfig(ctx)
	if err != nil {
		return false, err
	}
	now := m.view()
	return doc.Token != cmp.Or(now.looked, now.current.Token), nil
}

// Refresh reads the configuration and the groups again, and applies newer ones in place. It returns problems only with
// the result Invalid. It returns an error if it cannot read the bucket or write the applied copy. After an error, the
// former configuration stays in force.
//
// If the configuration is only for servers that will replace this one, Refresh changes nothing. See
// [Manager.Successor]. Refresh also refuses a configuration that this server cannot run, and one that causes new
// problems in a dynamic group.
func (m *Manager) Refresh(ctx context.Context) (Result, config.Problems, error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	doc, err := m.readConfig(ctx)
	if err != nil {
		return Unchanged, nil, err
	}
	groups, err := m.readGroups(ctx)
	if err != nil {
		return Unchanged, nil, err
	}
	now := m.view()
	if doc.Token == now.current.Token {
		m.refuse(objstore.Object{}, nil)
		m.update(func(f *inForce) {
			f.looked, f.successor, f.restart, f.pending = doc.Token, nil, objstore.Object{}, nil
		})
		if groups.token == now.groups.token || groups.token == "" {
			return Unchanged, nil, nil
		}
		m.takeGroups(groups)
		return Updated, nil, nil
	}
	if doc.Token == now.restart.Token { // it has passed its trial
		if groups.token != now.groups.token && groups.token != "" {
			m.takeGroups(groups)
		}
		if now.refused.Token == doc.Token {
			return Invalid, now.problems, nil
		}
		return Restart, nil, nil
	}
	next := m.parse(doc, groups, false)
	m.try(ctx, &next, false)
	if m.noteSuccessor(&next) {
		m.update(func(f *inForce) { f.looked, f.restart, f.pending = doc.Token, objstore.Object{}, nil })
		m.refuse(objstore.Object{}, nil)
		return Unchanged, nil, nil
	}
	problems := next.problems()
	if next.err == nil {
		problems = m.newlyBroken(now.shard, next.shard, groups)
	}
	if ctx.Err() != nil {
		return Unchanged, nil, ctx.Err() // an interrupted trial proves nothing
	}
	m.update(func(f *inForce) { f.looked = doc.Token })
	if len(problems) > 0 {
		problems = problems.Errors()
		m.update(func(f *inForce) { f.restart, f.pending = objstore.Object{}, nil })
		m.refuse(doc, problems)
		return Invalid, problems, nil
	}
	if full := next.shard.WithDefaults(); !InPlace(now.shard, full) {
		m.refuse(objstore.Object{}, nil)
		m.update(func(f *inForce) { f.restart, f.pending = doc, full })
		return Restart, nil, nil
	}
	// The configuration is recorded before it is applied, so that the next leader starts from it even if the bucket's
	// copy becomes invalid.
	if err := m.record(ctx, doc); err != nil {
		return Unchanged, nil, err
	}
	m.refuse(objstore.Object{}, nil)
	m.adopt(next)
	m.applyConfig()
	m.dropEnded(ctx, time.Time{})
	return Updated, nil, nil
}

// RefusePending records that the configuration in [Manager.Pending] is refused, because another server of the shard
// cannot run with it. An empty reason ends that. The configuration stays pending.
func (m *Manager) RefusePending(reason string) config.Problems {
	pending := m.view().restart
	if reason == "" || pending.Token == "" {
		m.refuse(objstore.Object{}, nil)
		return nil
	}
	problems := config.Problems{{File: "config", Message: reason}}
	m.refuse(pending, problems)
	return problems
}

// Examine returns, on a server that does not lead, what Refresh would return on a leader: whether the configuration in
// the bucket needs a restart of this server, and whether this server can run with it. Examine applies and records
// nothing.
func (m *Manager) Examine(ctx context.Context) (Result, config.Problems, error) {
	doc, err := m.readConfig(ctx)
	if err != nil {
		return Unchanged, nil, err
	}
	now := m.view()
	if doc.Token == now.current.Token {
		return Unchanged, nil, nil
	}
	next := m.parse(doc, dynamic{}, false)
	m.try(ctx, &next, false)
	if ctx.Err() != nil {
		return Unchanged, nil, ctx.Err() // an interrupted trial proves nothing
	}
	switch {
	case next.err != nil:
		return Invalid, problemsOf(next.err), nil
	case !InPlace(now.shard, next.shard.WithDefaults()):
		return Restart, nil, nil
	}
	return Updated, nil, nil
}

// problemsOf returns the problems in err, or err itself as a problem of the configuration.
func problemsOf(err error) config.Problems {
	if problems, ok := errors.AsType[config.Problems](err); ok {
		return problems
	}
	return config.Problems{{File: "config", Message: err.Error()}}
}

// newlyBroken returns the additional problems that the next configuration would cause in dynamic groups.
func (m *Manager) newlyBroken(shard, next *config.Shard, d dynamic) config.Problems {
	problems := m.broken(next, d)
	if len(problems) == 0 {
		return nil
	}
	known := map[string]bool{}
	for _, p := range m.broken(shard, d) {
		known[p.String()] = true
	}
	var out config.Problems
	for _, p := range problems {
		if !known[p.String()] {
			out = append(out, p)
		}
	}
	return out
}

// applyConfig passes the configuration in force to the applier, if this server leads.
func (m *Manager) applyConfig() {
	if now := m.view(); now.applier != nil {
		now.applier.ApplyConfig(now.shard, now.merged)
	}
}

// Status returns the state of the configuration.
func (m *Manager) Status() Status {
	now := m.view()
	return Status{ETag: string(now.current.Token), Size: len(now.current.Body), Generation: now.generation,
		RestartETag: string(now.restart.Token), RefusedETag: string(now.refused.Token), Problems: now.problems}
}

// Shard returns the configuration in force with defaults filled in, or nil before Load. The caller must not change it.
func (m *Manager) Shard() *config.Shard { return m.view().shard }

// Groups returns the merged groups in force. The caller must not change the map.
func (m *Manager) Groups() map[config.GroupKey]config.Group { return m.view().merged }
