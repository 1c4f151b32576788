package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// ReadConfig reads a shard's configuration as it was written. It returns objstore.ErrNotFound if there is none.
func (s *State) ReadConfig(ctx context.Context, shard string) ([]byte, objstore.Token, error) {
	object, err := s.options.Shard.Get(ctx, keys.Config(shard))
	if err != nil {
		return nil, "", fmt.Errorf("read configuration of shard %s: %w", shard, err)
	}
	return object.Body, object.Token, nil
}

// ConfigModified returns the time at which a shard's configuration was written, by the store's clock. It sends a list
// request, so do not call it in a loop.
func (s *State) ConfigModified(ctx context.Context, shard string) (time.Time, error) {
	entries, err := s.options.Shard.List(ctx, keys.Config(shard))
	if err != nil {
		return time.Time{}, fmt.Errorf("look up configuration of shard %s: %w", shard, err)
	}
	for _, entry := range entries {
		if entry.Key == keys.Config(shard) {
			return entry.Modified, nil
		}
	}
	return time.Time{}, fmt.Errorf("look up configuration of shard %s: %w", shard, objstore.ErrNotFound)
}

// WriteConfig writes a shard's configuration, which the caller has validated. It returns objstore.ErrConflict unless
// the present version has the given token. The token "" means that the shard has no configuration yet. The Terraform
// provider and nstance-admin use WriteConfig. Servers have no permission to write the configuration.
func (s *State) WriteConfig(ctx context.Context, shard string, body []byte, token objstore.Token) (objstore.Token,
	error) {
	if err := ident.ValidateName(shard); err != nil {
		return "", fmt.Errorf("write configuration: shard: %w", err)
	}
	newToken, err := s.put(ctx, s.options.Shard, keys.Config(shard), body, token)
	if err != nil {
		return "", fmt.Errorf("write configuration of shard %s: %w", shard, err)
	}
	return newToken, nil
}

// DeleteConfig removes a shard's configuration. It is no error if there is none. Call it only for a shard without
// instances.
func (s *State) DeleteConfig(ctx context.Context, shard string) error {
	if err := s.options.Shard.Delete(ctx, keys.Config(shard)); err != nil {
		return fmt.Errorf("delete configuration of shard %s: %w", shard, err)
	}
	return nil
}

// ReadGroups reads the document with the shard's dynamic groups and overrides. Problems that do not prevent the use of
// the document are returned as warnings. ReadGroups returns objstore.ErrNotFound if there is no document yet.
func (s *State) ReadGroups(ctx context.Context) (config.Groups, objstore.Token, config.Problems, error) {
	key := keys.Groups(s.options.ShardID)
	object, err := s.options.Shard.Get(ctx, key)
	if err != nil {
		return config.Groups{}, "", nil, fmt.Errorf("read groups: %w", err)
	}
	groups, problems := config.ParseGroups(key, object.Body)
	if err := problems.Err(); err != nil {
		return config.Groups{}, "", problems, fmt.Errorf("read groups: %w", err)
	}
	return groups, object.Token, problems, nil
}

// WriteGroups writes the shard's dynamic groups. The leader sets their term and revision. WriteGroups returns
// objstore.ErrConflict unless the present version has the given token; "" means that there is none.
func (s *State) WriteGroups(ctx context.Context, groups config.Groups, token objstore.Token) (objstore.Token, error) {
	if err := s.checkShard(); err != nil {
		return "", fmt.Errorf("write groups: %w", err)
	}
	newToken, err := s.put(ctx, s.options.Shard, keys.Groups(s.options.ShardID), config.EncodeGroups(groups), token)
	if err != nil {
		return "", fmt.Errorf("write groups: %w", err)
	}
	return newToken, nil
}

// ReadApplied reads the configuration that a leader of the shard accepted last. It returns objstore.ErrNotFound if no
// leader has accepted one yet. If no CA of the cluster signed it, the error matches authority.ErrUnsigned or
// authority.ErrSignature.
func (s *State) ReadApplied(ctx context.Context) (record.Applied, error) {
	fail := func(err error) (record.Applied, error) {
		return record.Applied{}, fmt.Errorf("read applied configuration: %w", err)
	}
	key := keys.Applied(s.options.ShardID)
	before := s.options.Marks.Highest(key)
	object, err := s.options.Shard.Get(ctx, key)
	if err != nil {
		return fail(err)
	}
	doc, err := s.openDocument(ctx, key, object.Body, before)
	if err != nil {
		return fail(err)
	}
	applied, err := record.DecodeApplied(doc.Content)
	if err != nil {
		return fail(err)
	}
	return applied, nil
}

// UnverifiedApplied is [State.ReadApplied] without a check of the signature. Anyone who can write to the bucket can
// forge the result.
func (s *State) UnverifiedApplied(ctx context.Context) (record.Applied, error) {
	applied, _, err := s.unverifiedApplied(ctx)
	return applied, err
}

func (s *State) unverifiedApplied(ctx context.Context) (record.Applied, objstore.Token, error) {
	object, err := s.options.Shard.Get(ctx, keys.Applied(s.options.ShardID))
	var content []byte
	if err == nil {
		content, err = authority.UnverifiedContent(object.Body)
	}
	var applied record.Applied
	if err == nil {
		applied, err = record.DecodeApplied(content)
	}
	if err != nil {
		return record.Applied{}, "", fmt.Errorf("read applied configuration: %w", err)
	}
	return applied, object.Token, nil
}

// WriteApplied records a configuration that the leader of the given term has accepted. It also records the value of
// [State.Trust] and the parameter "source": the token of the configuration that the leader read. If a leader of a
// higher term has already accepted a configuration, WriteApplied returns objstore.ErrConflict and replaces nothing.
func (s *State) WriteApplied(ctx context.Context, body []byte, source objstore.Token, term uint64) error {
	if err := s.checkShard(); err != nil {
		return fmt.Errorf("write applied configuration: %w", err)
	}
	for conflicts := (objstore.Conflicts{}); ; {
		// The signature of the present version is not checked here. A forged revision only makes the next revision
		// higher. A forged term can only make this write fail.
		have, token, err := s.unverifiedApplied(ctx)
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
		if have.Term > term {
			return fmt.Errorf("write applied configuration: a leader of term %d has applied one: %w", have.Term,
				objstore.ErrConflict)
		}
		// Highest returns the highest revision that this process has seen. So the revision rises even if someone
		// restored an older version of the applied configuration.
		revision := max(have.Revision, s.options.Marks.Highest(keys.Applied(s.options.ShardID))) + 1
		next := record.Applied{Schema: record.AppliedSchema, Revision: revision, Term: term,
			Source: string(source), Trust: s.Trust(), Body: body}
		text, err := next.Encode()
		if err != nil {
			return fmt.Errorf("write applied configuration: %w", err)
		}
		key := keys.Applied(s.options.ShardID)
		text, err = s.signDocument(ctx, key, next.Revision, text)
		if err == nil {
			_, err = s.put(ctx, s.options.Shard, key, text, token)
		}
		if conflicts.Again(ctx, err) {
			continue // another leader wrote; its term decides
		}
		if err != nil {
			return fmt.Errorf("write applied configuration: %w", err)
		}
		s.noteWritten(key, text, next.Revision)
		return nil
	}
}

// ReadLock reads the shard's election lock, for display or for the leader's address. It returns objstore.ErrNotFound if
// no server has led yet.
func (s *State) ReadLock(ctx context.Context, shard string) (record.Lock, objstore.Token, error) {
	object, err := s.options.Shard.Get(ctx, keys.Leader(shard))
	if err != nil {
		return record.Lock{}, "", fmt.Errorf("read lock of shard %s: %w", shard, err)
	}
	lock, err := record.DecodeLock(object.Body)
	if err != nil {
		return record.Lock{}, "", fmt.Errorf("read lock of shard %s: %w", shard, damaged(err))
	}
	return lock, object.Token, nil
}

// HighestTerm returns the highest term in the shard's instance records, groups and applied configuration, or 0 if there
// are none. A server that makes a new lock must give it a higher term. HighestTerm reads every instance record.
func (s *State) HighestTerm(ctx context.Context) (uint64, error) {
	var highest uint64
	err := s.LoadInstances(ctx, func(rec record.Instance, _ objstore.Token) { highest = max(highest, rec.Term) })
	if err != nil {
		return 0, fmt.Errorf("find the highest term: %w", err)
	}
	groups, _, _, err := s.ReadGroups(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return 0, fmt.Errorf("find the highest term: %w", err)
	}
	applied, err := s.UnverifiedApplied(ctx) // a forged term at worst makes the next term higher
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return 0, fmt.Errorf("find the highest term: %w", err)
	}
	return max(highest, groups.Term, applied.Term), nil
}

// AppendCertLog records certificates issued to an instance, under the entry's time. If the instance has an entry of
// that time already, AppendCertLog uses a time some nanoseconds later.
func (s *State) AppendCertLog(ctx context.Context, entry record.CertLog) error {
	fail := func(err error) error { return fmt.Errorf("append to certificate log: %w", err) }
	if err := errors.Join(belongs("cluster", entry.Cluster, s.options.ClusterID),
		belongs("shard", entry.Shard, s.options.ShardID)); err != nil {
		return fail(err)
	}
	for conflicts := (objstore.Conflicts{}); ; {
		body, err := entry.Encode()
		if err != nil {
			return fail(err)
		}
		key := keys.CertLog(s.options.ShardID, entry.Tenant, entry.IssuedAt, entry.Instance.Storage())
		_, err = s.put(ctx, s.options.Shard, key, body, "")
		if conflicts.Again(ctx, err) {
			entry.IssuedAt = entry.IssuedAt.Add(1)
			continue
		}
		if err != nil {
			return fail(err)
		}
		return nil
	}
}

// ListCertLog reads a tenant's entries, sorted by tenant and time. An empty tenant selects the entries of all tenants.
func (s *State) ListCertLog(ctx context.Context, tenant string) ([]record.CertLog, error) {
	if err := s.checkShard(); err != nil {
		return nil, fmt.Errorf("list certificate log: %w", err)
	}
	prefix := keys.CertLogPrefix(s.options.ShardID)
	if tenant != "" {
		prefix += tenant + "."
	}
	entries, err := s.options.Shard.List(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list certificate log: %w", err)
	}
	all, err := load(ctx, s, len(entries), func(ctx context.Context, i int) (record.CertLog, error) {
		object, err := s.options.Shard.Get(ctx, entries[i].Key)
		if err != nil {
			return record.CertLog{}, err
		}
		entry, err := record.DecodeCertLog(object.Body)
		if err != nil {
			return record.CertLog{}, fmt.Errorf("%s: %w", entries[i].Key, err)
		}
		return entry, errors.Join(belongs("cluster", entry.Cluster, s.options.ClusterID),
			belongs("shard", entry.Shard, s.options.ShardID))
	})
	if err != nil {
		return nil, fmt.Errorf("list certificate log: %w", err)
	}
	return all, nil
}

// ReadFile reads an object of the bucket that an instance can receive as a file. It returns objstore.ErrNotFound if
// there is none.
func (s *State) ReadFile(ctx context.Context, name string) ([]byte, error) {
	object, err := s.options.Shard.Get(ctx, keys.File(name))
	if err != nil {
		return nil, fmt.Errorf("read file %q: %w", name, err)
	}
	return object.Body, nil
}

// NotHomeError means that a bucket is not the home of a shard: it is a copy, or it got another name.
type NotHomeError struct {
	Shard string
	Home  record.Home
	Here  record.Bucket
}

func (e *NotHomeError) Error() string {
	return fmt.Sprintf("this bucket may be a copy: the home of shard %s is %s, but this is %s; the server does not "+
		"lead here before nstance-admin cluster restore makes this bucket the home", e.Shard, e.Home, e.Here)
}

// BucketAt returns the name of the bucket at a location, which open.Canonical has brought into one spelling.
func BucketAt(at objstore.Location) record.Bucket {
	return record.Bucket{Provider: at.Provider, Endpoint: at.Endpoint, Name: at.Bucket, Prefix: at.Prefix}
}

// ReadHome reads the home of the shard. It returns objstore.ErrNotFound if no server that knows of homes has led the
// shard.
func (s *State) ReadHome(ctx context.Context) (record.Home, objstore.Token, error) {
	object, err := s.options.Shard.Get(ctx, keys.Home(s.options.ShardID))
	if err != nil {
		return record.Home{}, "", fmt.Errorf("read the home of shard %s: %w", s.options.ShardID, err)
	}
	home, err := record.DecodeHome(object.Body)
	if err != nil {
		return record.Home{}, "", fmt.Errorf("read the home of shard %s: %w", s.options.ShardID, damaged(err))
	}
	return home, object.Token, nil
}

// CheckHome returns a *NotHomeError if a server that knows its bucket by the name `here` must not lead. Such a server
// must not stand for election either, because it would take over the lock.
func (s *State) CheckHome(ctx context.Context, here record.Bucket) error {
	home, _, err := s.ReadHome(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.checkHome(home, here)
}

func (s *State) checkHome(home record.Home, here record.Bucket) error {
	if !home.Is(here) {
		return &NotHomeError{Shard: s.options.ShardID, Home: home, Here: here}
	}
	return nil
}

// ClaimHome is like CheckHome, for a server that has just won the lock. If the home has no name yet, ClaimHome writes
// the name `here`. It returns the home.
func (s *State) ClaimHome(ctx context.Context, here record.Bucket) (record.Home, error) {
	return s.changeHome(ctx, func(home *record.Home) error {
		if len(home.Buckets) == 0 && home.SnapshotAt.IsZero() {
			home.Buckets = []record.Bucket{here}
		}
		return s.checkHome(*home, here)
	})
}

// NameHome adds a name to the home. The caller has proof that it is a name of the same bucket. NameHome does nothing if
// there is no home yet.
func (s *State) NameHome(ctx context.Context, here record.Bucket) error {
	_, err := s.changeHome(ctx, func(home *record.Home) error {
		if len(home.Buckets) > 0 && home.SnapshotAt.IsZero() && !slices.Contains(home.Buckets, here) {
			home.Buckets = append(home.Buckets, here)
		}
		return nil
	})
	return err
}

// EndOrphansWait notes that a person has confirmed the orphans after a restore.
func (s *State) EndOrphansWait(ctx context.Context) error {
	_, err := s.changeHome(ctx, func(home *record.Home) error {
		home.OrphansWait = false
		return nil
	})
	return err
}

// RestoreHome makes the bucket in which it is the home of the shard. The next leader adds its name. From then on, the
// leaders terminate no orphan before a person has confirmed the orphans.
func (s *State) RestoreHome(ctx context.Context) error {
	_, err := s.changeHome(ctx, func(home *record.Home) error {
		*home = record.Home{RestoredAt: s.options.Now(), OrphansWait: true}
		return nil
	})
	return err
}

// changeHome reads the home, applies the function `change`, and writes the home unless it is unchanged. It repeats all
// of that if another program writes the home meanwhile.
func (s *State) changeHome(ctx context.Context, change func(*record.Home) error) (record.Home, error) {
	for conflicts := (objstore.Conflicts{}); ; {
		old, token, err := s.ReadHome(ctx)
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return record.Home{}, err
		}
		home := old
		home.Buckets = slices.Clone(old.Buckets)
		if err := change(&home); err != nil {
			return record.Home{}, err
		}
		if reflect.DeepEqual(home, old) {
			return home, nil
		}
		home.Schema = record.HomeSchema
		body, err := home.Encode()
		if err != nil {
			return record.Home{}, fmt.Errorf("write the home of shard %s: %w", s.options.ShardID, err)
		}
		_, err = s.put(ctx, s.options.Shard, keys.Home(s.options.ShardID), body, token)
		if conflicts.Again(ctx, err) {
			continue
		}
		if err != nil {
			return record.Home{}, fmt.Errorf("write the home of shard %s: %w", s.options.ShardID, err)
		}
		return home, nil
	}
}

// ReadServerReport reads the report that was last written about a new server of the shard. It returns
// objstore.ErrNotFound if there is none.
func (s *State) ReadServerReport(ctx context.Context) (record.ServerReport, objstore.Token, error) {
	object, err := s.options.Shard.Get(ctx, keys.ServerReport(s.options.ShardID))
	if err != nil {
		return record.ServerReport{}, "", fmt.Errorf("read server report: %w", err)
	}
	report, err := record.DecodeServerReport(object.Body)
	if err != nil {
		return record.ServerReport{}, "", fmt.Errorf("read server report: %w", err)
	}
	return report, object.Token, nil
}

// WriteServerReport replaces the report about a new server of the shard. The last writer wins.
func (s *State) WriteServerReport(ctx context.Context, report record.ServerReport) error {
	if err := s.checkShard(); err != nil {
		return fmt.Errorf("write server report: %w", err)
	}
	body, err := report.Encode()
	if err != nil {
		return fmt.Errorf("write server report: %w", err)
	}
	for conflicts := (objstore.Conflicts{}); ; {
		object, err := s.options.Shard.Get(ctx, keys.ServerReport(s.options.ShardID))
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return fmt.Errorf("write server report: %w", err)
		}
		_, err = s.put(ctx, s.options.Shard, keys.ServerReport(s.options.ShardID), body, object.Token)
		if conflicts.Again(ctx, err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write server report: %w", err)
		}
		return nil
	}
}
