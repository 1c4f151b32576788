// Package shardconfig owns the configuration that is in force on a shard: it fetches what the bucket holds, refuses what is wrong, hands
// on what is right, and is the only writer of the dynamic groups.
//
// Invariant: what is in force once passed validation, and no leader acts on a configuration older than one that an earlier leader
// applied.
package shardconfig

import (
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

// Document is a configuration as it is in the bucket.
type Document struct {
	Body     []byte
	Token    objstore.Token
	Modified time.Time
}

// Applied is the last configuration that a leader accepted: its source, the token it had, and who applied it.
type Applied struct {
	Body   []byte
	Source objstore.Token
	Term   uint64
}

// Store is the bucket side of a shard's configuration. Missing documents are objstore.ErrNotFound.
type Store interface {
	Config(ctx context.Context) (Document, error)
	Groups(ctx context.Context) (config.Groups, objstore.Token, config.Problems, error)
	// PutGroups writes under the token last seen ("" for absent); objstore.ErrConflict when somebody else wrote.
	PutGroups(ctx context.Context, groups config.Groups, token objstore.Token) (objstore.Token, error)
	Applied(ctx context.Context) (Applied, error)
	PutApplied(ctx context.Context, applied Applied) error
}

// Result of looking for a newer configuration.
type Result uint8

const (
	Unchanged Result = iota
	Updated
	Invalid
	// Restart: the new configuration is valid but cannot be applied in place.
	Restart
)

// Status tells what is in force and what was refused.
type Status struct {
	ETag       string
	Modified   time.Time
	Size       int
	Generation uint64
	// RefusedETag and Problems are of a newer document that is not in force.
	RefusedETag string
	Problems    config.Problems
	Shard       *config.Shard
}

// Manager holds the configuration in force. Safe for concurrent use; changes of groups are made one at a time.
type Manager struct {
	store Store
	log   *slog.Logger

	changing sync.Mutex // held over a read-modify-write of the bucket's documents; never while mu is wanted by readers

	mu          sync.Mutex
	current     Document
	shard       *config.Shard // defaults filled in
	groups      config.Groups
	groupsToken objstore.Token
	merged      map[config.GroupKey]config.Group
	generation  uint64
	refused     Document
	problems    config.Problems
	apply       func(*config.Shard, map[config.GroupKey]config.Group)
	term        uint64
}

// New returns a Manager with nothing in force.
func New(store Store, log *slog.Logger) *Manager { return &Manager{store: store, log: log} }

// Load fetches and validates what the bucket holds now, for a server that does not lead: nothing is written. The problems of an invalid
// configuration are the error.
func (m *Manager) Load(ctx context.Context) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	doc, err := m.store.Config(ctx)
	if err != nil {
		return fmt.Errorf("read the shard's configuration: %w", err)
	}
	shard, problems := config.Parse("config", doc.Body)
	if err := problems.Err(); err != nil {
		return err
	}
	return m.adopt(ctx, doc, shard)
}

// Lead reads config and groups anew for a leader of the given term and hands them, and every later change, to apply. An invalid
// configuration is refused in favour of the last that was applied.
func (m *Manager) Lead(ctx context.Context, term uint64, apply func(*config.Shard, map[config.GroupKey]config.Group)) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	m.mu.Lock()
	m.apply, m.term, m.generation = nil, term, 0
	m.mu.Unlock()
	doc, err := m.store.Config(ctx)
	if err != nil {
		return fmt.Errorf("read the shard's configuration: %w", err)
	}
	shard, problems := config.Parse("config", doc.Body)
	if problems.Err() != nil {
		applied, err := m.store.Applied(ctx)
		if errors.Is(err, objstore.ErrNotFound) {
			return problems.Err()
		}
		if err != nil {
			return fmt.Errorf("read the applied configuration: %w", err)
		}
		m.refuse(doc, problems)
		doc = Document{Body: applied.Body, Token: applied.Source, Modified: doc.Modified}
		if shard, problems = config.Parse("applied", applied.Body); problems.Err() != nil {
			return fmt.Errorf("the applied configuration is not valid for this version: %w", problems.Err())
		}
	}
	if err := m.adopt(ctx, doc, shard); err != nil {
		return err
	}
	if err := m.record(ctx, doc); err != nil {
		return err
	}
	m.mu.Lock()
	m.apply = apply
	shard, merged := m.shard, m.merged
	m.mu.Unlock()
	apply(shard, merged)
	return nil
}

// Follow ends leading: changes are no longer handed on.
func (m *Manager) Follow() {
	m.mu.Lock()
	m.apply = nil
	m.mu.Unlock()
}

// adopt puts a valid configuration in force together with the dynamic groups as they are now.
func (m *Manager) adopt(ctx context.Context, doc Document, shard *config.Shard) error {
	groups, token, warnings, err := m.store.Groups(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return fmt.Errorf("read the dynamic groups: %w", err)
	}
	full := shard.WithDefaults()
	merged, more := full.Merged(groups)
	for _, warning := range append(warnings, more...) {
		m.log.Warn("dynamic groups", "problem", warning.String())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current, m.shard, m.groups, m.groupsToken, m.merged = doc, full, groups, token, merged
	m.generation++
	return nil
}

// record keeps the configuration that is now in force for the next leader.
func (m *Manager) record(ctx context.Context, doc Document) error {
	m.mu.Lock()
	term := m.term
	m.mu.Unlock()
	if have, err := m.store.Applied(ctx); err == nil && have.Source == doc.Token && string(have.Body) == string(doc.Body) {
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

// Refresh looks for a newer configuration and newer groups and applies them in place. Problems come with Invalid; an error means that
// the bucket could not be read (or the applied copy not written) and nothing changed.
func (m *Manager) Refresh(ctx context.Context) (Result, config.Problems, error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	doc, err := m.store.Config(ctx)
	if err != nil {
		return Unchanged, nil, fmt.Errorf("read the shard's configuration: %w", err)
	}
	m.mu.Lock()
	current, shard, groupsToken := m.current, m.shard, m.groupsToken
	m.mu.Unlock()
	result := Unchanged
	if doc.Token == current.Token {
		m.refuse(Document{}, nil)
		groups, token, _, err := m.store.Groups(ctx)
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return Unchanged, nil, fmt.Errorf("read the dynamic groups: %w", err)
		}
		if token == groupsToken {
			return Unchanged, nil, nil
		}
		m.takeGroups(groups, token)
		return Updated, nil, nil
	}
	next, problems := config.Parse("config", doc.Body)
	if problems.Err() != nil {
		m.refuse(doc, problems)
		return Invalid, problems.Errors(), nil
	}
	result = Updated
	if !inPlace(shard, next.WithDefaults()) {
		// The applied copy is recorded now, so that the next leader starts from it even if the bucket's copy breaks meanwhile.
		if err := m.record(ctx, doc); err != nil {
			return Unchanged, nil, err
		}
		return Restart, nil, nil
	}
	if err := m.record(ctx, doc); err != nil {
		return Unchanged, nil, err
	}
	if err := m.adopt(ctx, doc, next); err != nil {
		return Unchanged, nil, err
	}
	m.refuse(Document{}, nil)
	m.handOn()
	return result, nil, nil
}

// inPlace reports whether b may replace a without a restart: cluster, storage, provider, bind and shard stay.
func inPlace(a, b *config.Shard) bool {
	return reflect.DeepEqual(a.Cluster, b.Cluster) && reflect.DeepEqual(a.Server.Provider, b.Server.Provider) &&
		a.Server.Bind == b.Server.Bind && a.Server.Advertise == b.Server.Advertise && a.Server.Shard == b.Server.Shard &&
		reflect.DeepEqual(a.Server.LeaderNetwork, b.Server.LeaderNetwork) && reflect.DeepEqual(a.Server.LeaderElection, b.Server.LeaderElection)
}

func (m *Manager) handOn() {
	m.mu.Lock()
	apply, shard, merged := m.apply, m.shard, m.merged
	m.mu.Unlock()
	if apply != nil {
		apply(shard, merged)
	}
}

// Status tells what is in force.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Status{ETag: string(m.current.Token), Modified: m.current.Modified, Size: len(m.current.Body), Generation: m.generation,
		RefusedETag: string(m.refused.Token), Problems: m.problems, Shard: m.shard}
}

// Shard returns the configuration in force, defaults filled in; nil before Load. It must not be changed.
func (m *Manager) Shard() *config.Shard {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shard
}

// Groups returns the merged groups in force. The map must not be changed.
func (m *Manager) Groups() map[config.GroupKey]config.Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.merged
}

// GroupETag identifies a group's definition: it changes whenever the merged group does. "" for a group that does not exist.
func GroupETag(g config.Group) string {
	digest := sha256.New()
	fmt.Fprintf(digest, "%s\x00%t\x00%t\x00%s\x00%d\x00%s\x00%q\x00%s\x00%q\x00%v\x00%d\x00%s\x00%s\x00%s", g.GroupKey, g.Static, g.Deleted, g.Template,
		g.Size, g.InstanceType, g.InstanceTypes, g.SubnetPool, g.LoadBalancers, g.DrainTimeout, g.MaxSurge, g.MaxUnhealthy, g.RuntimeHash, g.InfraHash)
	return hex.EncodeToString(digest.Sum(nil)[:8])
}
