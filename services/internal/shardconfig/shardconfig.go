// Package shardconfig manages the configuration that is in force on a shard. It reads the bucket, refuses an invalid
// configuration, and passes a valid one to the leader. It is the only writer of the dynamic groups.
//
// Invariant: a configuration in force has passed validation, and no leader acts on a configuration older than one that
// an earlier leader applied.
package shardconfig

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/objstore"
)

// Document is a configuration as stored in the bucket.
type Document struct {
	Body     []byte
	Token    objstore.Token
	Modified time.Time
}

// Applied is the last configuration that a leader accepted. Source is the token of its document, and Term is the term
// of the leader that applied it.
type Applied struct {
	Body   []byte
	Source objstore.Token
	Term   uint64
}

// Store reads and writes a shard's configuration in the bucket. A missing document is objstore.ErrNotFound.
type Store interface {
	Config(ctx context.Context) (Document, error)
	Groups(ctx context.Context) (config.Groups, objstore.Token, config.Problems, error)
	// PutGroups writes the groups if token is still their version. token "" means that the document must not exist. It
	// fails with objstore.ErrConflict if the version differs.
	PutGroups(ctx context.Context, groups config.Groups, token objstore.Token) (objstore.Token, error)
	Applied(ctx context.Context) (Applied, error)
	PutApplied(ctx context.Context, applied Applied) error
}

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

// Status describes the configuration in force and the refused one.
type Status struct {
	ETag       string
	Modified   time.Time
	Size       int
	Generation uint64
	// RestartETag is the ETag of a newer, valid document that needs a new process.
	RestartETag string
	// RefusedETag and Problems describe a newer document that was refused.
	RefusedETag string
	Problems    config.Problems
	Shard       *config.Shard
}

// Applier puts configurations in force on a leader. The Manager calls one method at a time. The methods must not call a
// Manager method that changes anything, and must not modify the maps.
type Applier interface {
	// ApplyConfig puts a configuration in force, with all its merged groups.
	ApplyConfig(shard *config.Shard, groups map[config.GroupKey]config.Group)
	// ApplyGroups puts changed groups in force. groups holds all merged groups, and changed lists those that differ
	// from the last call. A changed group that is missing from groups is gone. ApplyGroups runs within an operator's
	// call and must not wait for the network.
	ApplyGroups(groups map[config.GroupKey]config.Group, changed []config.GroupKey)
}

// Manager holds the configuration in force. It is safe for concurrent use, and changes groups one at a time.
type Manager struct {
	store Store
	log   *slog.Logger
	trial Trial

	changing sync.Mutex // held for a read-modify-write of the bucket's documents; readers need only mu

	mu          sync.Mutex
	current     Document
	shard       *config.Shard // with defaults filled in
	groups      config.Groups
	groupsToken objstore.Token
	merged      map[config.GroupKey]config.Group
	generation  uint64
	restart     Document
	refused     Document
	problems    config.Problems // errors only
	applier     Applier         // nil while not leading
	term        uint64
}

// Trial opens, without using it, everything that a configuration names and this server does not use yet: the provider,
// the cluster's bucket, the secrets store, the encryption keys. Its error says why this server cannot run with the
// configuration. shard has its defaults filled in. applied means that a leader has run with the configuration. Then
// only what this server itself lacks is an error.
type Trial func(ctx context.Context, shard *config.Shard, applied bool) error

// SetTrial sets the trial that every configuration must pass before it is put in force or recorded as applied. Call it
// before any other method.
func (m *Manager) SetTrial(trial Trial) { m.trial = trial }

// New returns a Manager without a configuration in force.
func New(store Store, log *slog.Logger) *Manager { return &Manager{store: store, log: log} }

// Load reads and validates the configuration in the bucket, for a server that does not lead. It writes nothing. If the
// configuration is invalid, Load puts the last applied one in force. Without an applied one, it returns the problems as
// its error.
func (m *Manager) Load(ctx context.Context) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	_, err := m.begin(ctx)
	return err
}

// Lead reads configuration and groups again for a leader of the given term. It passes them and every later change to
// applier. If the configuration is refused, Lead uses the last applied one. It returns ErrRestart if the configuration
// cannot replace the loaded one in place.
func (m *Manager) Lead(ctx context.Context, term uint64, applier Applier) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	m.mu.Lock()
	m.applier, m.term, m.generation = nil, term, 0
	before := m.shard
	m.mu.Unlock()
	doc, err := m.begin(ctx)
	if err != nil {
		return err
	}
	// The configuration is recorded only once this process runs with it, because servers fall back to the recorded one.
	if before != nil && !InPlace(before, m.Shard()) {
		return ErrRestart
	}
	if err := m.record(ctx, doc); err != nil {
		return err
	}
	m.mu.Lock()
	m.applier = applier
	m.mu.Unlock()
	m.applyConfig()
	return nil
}

// candidate is a configuration that may be put in force.
type candidate struct {
	doc    Document
	shard  *config.Shard
	groups dynamic
	// parseErr means that the configuration is invalid. trialErr means that this server cannot run it. broken lists the
	// groups that cannot be made from it.
	parseErr, trialErr error
	broken             config.Problems
}

// parse parses a configuration and merges it with dynamic groups. applied means that a leader has run with it.
func (m *Manager) parse(doc Document, groups dynamic, applied bool) candidate {
	c := candidate{doc: doc, groups: groups}
	var problems config.Problems
	if applied {
		c.shard, problems = config.ParseApplied("config", doc.Body)
	} else {
		c.shard, problems = config.Parse("config", doc.Body)
	}
	if c.parseErr = problems.Err(); c.parseErr != nil {
		return c
	}
	for _, problem := range problems.Warnings() {
		m.log.Warn("configuration", "problem", problem.String())
	}
	c.broken = m.broken(c.shard, groups)
	return c
}

// try runs the trial of a valid configuration that is not in force already. applied means that a leader has run with
// it.
func (m *Manager) try(ctx context.Context, c *candidate, applied bool) {
	m.mu.Lock()
	inForce := m.current.Token != "" && m.current.Token == c.doc.Token
	m.mu.Unlock()
	if c.parseErr == nil && !inForce && m.trial != nil {
		c.trialErr = m.trial(ctx, c.shard.WithDefaults(), applied)
	}
}

// err returns why the configuration cannot be put in force. It is nil if only some of its groups are broken.
func (c *candidate) err() error { return cmp.Or(c.parseErr, c.trialErr) }

// problems returns everything that is wrong with the configuration.
func (c *candidate) problems() config.Problems {
	if err := c.err(); err != nil {
		return problemsOf(err)
	}
	return c.broken
}

// begin puts the configuration in the bucket in force, or the last applied one if that is refused.
func (m *Manager) begin(ctx context.Context) (Document, error) {
	doc, err := m.store.Config(ctx)
	if err != nil {
		return Document{}, fmt.Errorf("read the shard's configuration: %w", err)
	}
	m.mu.Lock()
	m.groups, m.groupsToken = config.Groups{}, "" // groups of an earlier term do not count
	m.mu.Unlock()
	groups, err := m.readGroups(ctx)
	if err != nil {
		return Document{}, err
	}
	applied, err := m.store.Applied(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return Document{}, fmt.Errorf("read the applied configuration: %w", err)
	}
	isApplied := err == nil && string(applied.Body) == string(doc.Body)
	newest := m.parse(doc, groups, isApplied)
	m.try(ctx, &newest, isApplied)
	if len(newest.problems()) == 0 {
		m.refuse(Document{}, nil)
		m.adopt(newest)
		return doc, nil
	}
	if err == nil && !isApplied {
		before := m.parse(Document{Body: applied.Body, Token: applied.Source}, groups, true)
		better := newest.err() != nil || len(before.broken) < len(newest.broken)
		if better { // the last trial that passes must be that of the configuration in force
			m.try(ctx, &before, true)
		}
		switch {
		case better && before.err() == nil:
			m.log.Warn("the newest configuration is refused: the one that was applied last stays in force",
				"refused_etag", string(doc.Token), "etag", string(applied.Source),
				"problems", newest.problems().Error())
			m.refuse(doc, newest.problems())
			m.adopt(before)
			return before.doc, nil
		case before.err() != nil && newest.err() != nil:
			return Document{}, fmt.Errorf("neither the configuration nor the applied one can be used:\n%w\n%w",
				newest.err(), before.err())
		}
	}
	if err := newest.err(); err != nil {
		return Document{}, err
	}
	// No better configuration was ever applied. The groups that can be made are served.
	for _, problem := range newest.broken {
		m.log.Warn("some groups cannot be created", "problem", problem.String())
	}
	m.refuse(Document{}, nil)
	m.adopt(newest)
	return doc, nil
}

// Follow ends leading. The Manager no longer passes changes on.
func (m *Manager) Follow() {
	m.mu.Lock()
	m.applier = nil
	m.mu.Unlock()
}

// dynamic is the document of the dynamic groups as read from the bucket.
type dynamic struct {
	groups config.Groups
	token  objstore.Token
}

// readGroups reads the dynamic groups. If the document existed in this term and is now missing, that is a mistake, and
// the known groups stay in force. Otherwise all their instances would be deleted.
func (m *Manager) readGroups(ctx context.Context) (dynamic, error) {
	groups, token, warnings, err := m.store.Groups(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.groupsToken != "" {
			m.log.Error(
				"the dynamic groups are gone from the bucket; those known stay in force and are written again with " +
					"the next change")
		}
		return dynamic{m.groups, ""}, nil
	}
	if err != nil {
		return dynamic{}, fmt.Errorf("read the dynamic groups: %w", err)
	}
	for _, warning := range warnings {
		m.log.Warn("dynamic groups", "problem", warning.String())
	}
	return dynamic{groups, token}, nil
}

// broken returns the problems that prevent groups from being made from an otherwise valid configuration.
func (m *Manager) broken(shard *config.Shard, d dynamic) config.Problems {
	_, problems := shard.Merged(d.groups)
	for i := range problems {
		problems[i].File = "groups"
	}
	return problems.Errors()
}

// adopt puts a valid configuration in force together with dynamic groups.
func (m *Manager) adopt(c candidate) {
	doc, d := c.doc, c.groups
	full := c.shard.WithDefaults()
	merged, problems := full.Merged(d.groups)
	for _, problem := range problems {
		m.log.Warn("dynamic groups", "problem", problem.String())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current, m.shard, m.groups, m.groupsToken, m.merged, m.restart = doc, full, d.groups, d.token, merged, Document{}
	m.generation++
}

// record stores the configuration in force for the next leader, once per term. It is the first write of a leader, so
// the term stays known even if the lock is removed before any other write.
func (m *Manager) record(ctx context.Context, doc Document) error {
	m.mu.Lock()
	term := m.term
	m.mu.Unlock()
	if have, err := m.store.Applied(ctx); err == nil && have.Term == term && have.Source == doc.Token &&
		string(have.Body) == string(doc.Body) {
		return nil
	}
	if err := m.store.PutApplied(ctx, Applied{Body: doc.Body, Source: doc.Token, Term: term}); err != nil {
		return fmt.Errorf("record the applied configuration: %w", err)
	}
	return nil
}

func (m *Manager) refuse(doc Document, problems config.Problems) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused, m.problems = doc, problems
}

// Refresh reads the configuration and the groups again, and applies newer ones in place. Problems come with Invalid. An
// error means that nothing changed, because the bucket could not be read or the applied copy could not be written.
//
// Refresh also refuses a configuration that this server cannot run, and one that breaks a dynamic group that could be
// made before.
func (m *Manager) Refresh(ctx context.Context) (Result, config.Problems, error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	doc, err := m.store.Config(ctx)
	if err != nil {
		return Unchanged, nil, fmt.Errorf("read the shard's configuration: %w", err)
	}
	groups, err := m.readGroups(ctx)
	if err != nil {
		return Unchanged, nil, err
	}
	m.mu.Lock()
	current, shard, groupsToken := m.current, m.shard, m.groupsToken
	m.mu.Unlock()
	if doc.Token == current.Token {
		m.refuse(Document{}, nil)
		if groups.token == groupsToken || groups.token == "" {
			return Unchanged, nil, nil
		}
		m.takeGroups(groups)
		return Updated, nil, nil
	}
	next := m.parse(doc, groups, false)
	m.try(ctx, &next, false)
	problems := next.problems()
	if next.err() == nil {
		problems = m.newlyBroken(shard, next.shard, groups)
	}
	if ctx.Err() != nil {
		return Unchanged, nil, ctx.Err() // an interrupted trial proves nothing
	}
	if len(problems) > 0 {
		problems = problems.Errors()
		m.refuse(doc, problems)
		return Invalid, problems, nil
	}
	if !InPlace(shard, next.shard.WithDefaults()) {
		m.refuse(Document{}, nil)
		m.mu.Lock()
		m.restart = doc
		m.mu.Unlock()
		return Restart, nil, nil
	}
	// The configuration is recorded before it is applied, so that the next leader starts from it even if the bucket's
	// copy becomes invalid.
	if err := m.record(ctx, doc); err != nil {
		return Unchanged, nil, err
	}
	m.refuse(Document{}, nil)
	m.adopt(next)
	m.applyConfig()
	return Updated, nil, nil
}

// problemsOf returns the problems in err, or err itself as a problem of the configuration.
func problemsOf(err error) config.Problems {
	var problems config.Problems
	if errors.As(err, &problems) {
		return problems
	}
	return config.Problems{{File: "config", Message: err.Error()}}
}

// newlyBroken returns the problems of dynamic groups that the next configuration adds.
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

// InPlace reports whether configuration b can replace a without a restart of the server. Cluster, provider, shard,
// addresses, leader network and election must be equal. Both must have their defaults filled in.
func InPlace(a, b *config.Shard) bool {
	return reflect.DeepEqual(a.Cluster, b.Cluster) && reflect.DeepEqual(a.Server.Provider, b.Server.Provider) &&
		a.Server.Bind == b.Server.Bind && a.Server.Advertise == b.Server.Advertise &&
		a.Server.Shard == b.Server.Shard &&
		reflect.DeepEqual(a.Server.LeaderNetwork, b.Server.LeaderNetwork) &&
		reflect.DeepEqual(a.Server.LeaderElection, b.Server.LeaderElection)
}

// applyConfig passes the configuration in force to the applier, if this server leads.
func (m *Manager) applyConfig() {
	m.mu.Lock()
	applier, shard, merged := m.applier, m.shard, m.merged
	m.mu.Unlock()
	if applier != nil {
		applier.ApplyConfig(shard, merged)
	}
}

// Status returns the state of the configuration.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Status{ETag: string(m.current.Token), Modified: m.current.Modified, Size: len(m.current.Body),
		Generation:  m.generation,
		RestartETag: string(m.restart.Token), RefusedETag: string(m.refused.Token), Problems: m.problems,
		Shard: m.shard}
}

// Shard returns the configuration in force with defaults filled in, or nil before Load. The caller must not change it.
func (m *Manager) Shard() *config.Shard {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shard
}

// Groups returns the merged groups in force. The caller must not change the map.
func (m *Manager) Groups() map[config.GroupKey]config.Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.merged
}

// GroupETag returns an identifier of a group's definition. It changes whenever the merged group changes.
func GroupETag(g config.Group) string {
	digest := sha256.New()
	fmt.Fprintf(digest, "%s\x00%t\x00%t\x00%s\x00%d\x00%s\x00%q\x00%s\x00%q\x00%v\x00%d\x00%s\x00%s\x00%s", g.GroupKey,
		g.Static, g.Deleted, g.Template,
		g.Size, g.InstanceType, g.InstanceTypes, g.SubnetPool, g.LoadBalancers, g.DrainTimeout, g.MaxSurge,
		g.MaxUnhealthy, g.RuntimeHash, g.InfraHash)
	return hex.EncodeToString(digest.Sum(nil)[:8])
}
