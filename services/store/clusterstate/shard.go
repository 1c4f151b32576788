package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// ReadConfig reads a shard's configuration as it was written. It returns objstore.ErrNotFound if there is none.
func (s *State) ReadConfig(ctx context.Context, shard string) (body []byte, token objstore.Token, err error) {
	defer explain(&err, "read configuration of shard %s", shard)
	object, err := s.options.Shard.Get(ctx, keys.Config(shard))
	return object.Body, object.Token, err
}

// ConfigModified returns the time at which a shard's configuration was written, by the store's clock. It sends a list
// request, so do not call it in a loop.
func (s *State) ConfigModified(ctx context.Context, shard string) (at time.Time, err error) {
	defer explain(&err, "look up configuration of shard %s", shard)
	entries, err := s.options.Shard.List(ctx, keys.Config(shard))
	if err != nil {
		return time.Time{}, err
	}
	for _, entry := range entries {
		if entry.Key == keys.Config(shard) {
			return entry.Modified, nil
		}
	}
	return time.Time{}, objstore.ErrNotFound
}

// WriteConfig writes a shard's configuration, which the caller has validated. It returns objstore.ErrConflict unless
// the present version has the given token. The token "" means that the shard has no configuration yet. The Terraform
// provider and nstance-admin use WriteConfig. Servers have no permission to write the configuration.
func (s *State) WriteConfig(ctx context.Context, shard string, body []byte, token objstore.Token) (_ objstore.Token,
	err error) {
	defer explain(&err, "write configuration of shard %s", shard)
	if err := ident.ValidateName(shard); err != nil {
		return "", err
	}
	return s.put(ctx, s.options.Shard, keys.Config(shard), body, token)
}

// DeleteConfig removes a shard's configuration. It is no error if there is none. Call it only for a shard without
// instances.
func (s *State) DeleteConfig(ctx context.Context, shard string) (err error) {
	defer explain(&err, "delete configuration of shard %s", shard)
	return s.options.Shard.Delete(ctx, keys.Config(shard))
}

// ReadGroups reads the document with the shard's dynamic groups and overrides. Problems that do not prevent the use of
// the document are returned as warnings. ReadGroups returns objstore.ErrNotFound if there is no document yet.
func (s *State) ReadGroups(ctx context.Context) (_ config.Groups, _ objstore.Token, _ config.Problems, err error) {
	defer explain(&err, "read groups")
	key := keys.Groups(s.options.ShardID)
	object, err := s.options.Shard.Get(ctx, key)
	if err != nil {
		return config.Groups{}, "", nil, err
	}
	groups, problems := config.ParseGroups(key, object.Body)
	if err := problems.Err(); err != nil {
		return config.Groups{}, "", problems, err
	}
	return groups, object.Token, problems, nil
}

// WriteGroups writes the shard's dynamic groups. The leader sets their term and revision. WriteGroups returns
// objstore.ErrConflict unless the present version has the given token; "" means that there is none.
func (s *State) WriteGroups(ctx context.Context, groups config.Groups, token objstore.Token) (_ objstore.Token,
	err error) {
	defer explain(&err, "write groups")
	if err := s.checkShard(); err != nil {
		return "", err
	}
	return s.put(ctx, s.options.Shard, keys.Groups(s.options.ShardID), config.EncodeGroups(groups), token)
}

// ReadApplied reads the configuration that a leader of the shard accepted last. It returns objstore.ErrNotFound if no
// leader has accepted one yet. If no CA of the cluster signed it, the error matches authority.ErrUnsigned or
// authority.ErrSignature.
func (s *State) ReadApplied(ctx context.Context) (applied record.Applied, err error) {
	defer explain(&err, "read applied configuration")
	applied, _, err = readSigned(ctx, s, s.options.Shard, keys.Applied(s.options.ShardID), record.DecodeApplied)
	return applied, err
}

// UnverifiedApplied is [State.ReadApplied] without a check of the signature. Anyone who can write to the bucket can
// forge the result.
func (s *State) UnverifiedApplied(ctx context.Context) (record.Applied, error) {
	applied, _, err := s.unverifiedApplied(ctx)
	return applied, err
}

func (s *State) unverifiedApplied(ctx context.Context) (_ record.Applied, _ objstore.Token, err error) {
	defer explain(&err, "read applied configuration")
	return read(ctx, s.options.Shard, keys.Applied(s.options.ShardID), unverified(record.DecodeApplied))
}

// WriteApplied records a configuration that the leader of the given term has accepted. It also records the value of
// [State.Trust] and the parameter "source": the token of the configuration that the leader read. If a leader of a
// higher term has already accepted a configuration, WriteApplied returns objstore.ErrConflict and replaces nothing.
func (s *State) WriteApplied(ctx context.Context, body []byte, source objstore.Token, term uint64) (err error) {
	defer explain(&err, "write applied configuration")
	if err := s.checkShard(); err != nil {
		return err
	}
	key := keys.Applied(s.options.ShardID)
	for conflicts := (objstore.Conflicts{}); ; {
		// The signature of the present version is not checked here. A forged revision only makes the next revision
		// higher. A forged term can only make this write fail.
		have, token, err := s.unverifiedApplied(ctx)
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
		if have.Term > term {
			return fmt.Errorf("a leader of term %d has applied one: %w", have.Term, objstore.ErrConflict)
		}
		// Highest returns the highest revision that this process has seen. So the revision rises even if someone
		// restored an older version of the applied configuration.
		revision := max(have.Revision, s.options.Marks.Highest(key)) + 1
		text, err := record.Applied{Schema: record.AppliedSchema, Revision: revision, Term: term,
			Source: string(source), Trust: s.Trust(), Body: body}.Encode()
		if err != nil {
			return err
		}
		// If another leader wrote meanwhile, its term decides.
		_, err = s.putSigned(ctx, s.options.Shard, key, revision, text, token)
		if !conflicts.Again(ctx, err) {
			return err
		}
	}
}

// ReadLock reads the shard's election lock, for display or for the leader's address. It returns objstore.ErrNotFound if
// no server has led yet.
func (s *State) ReadLock(ctx context.Context, shard string) (_ record.Lock, _ objstore.Token, err error) {
	defer explain(&err, "read lock of shard %s", shard)
	return read(ctx, s.options.Shard, keys.Leader(shard), orDamaged(record.DecodeLock))
}

// HighestTerm returns the highest term in the shard's instance records, groups and applied configuration, or 0 if there
// are none. A server that makes a new lock must give it a higher term. HighestTerm reads every instance record.
func (s *State) HighestTerm(ctx context.Context) (highest uint64, err error) {
	defer explain(&err, "find the highest term")
	err = s.LoadInstances(ctx, func(rec record.Instance, _ objstore.Token) { highest = max(highest, rec.Term) })
	if err != nil {
		return 0, err
	}
	groups, _, _, err := s.ReadGroups(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return 0, err
	}
	applied, err := s.UnverifiedApplied(ctx) // a forged term at worst makes the next term higher
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return 0, err
	}
	return max(highest, groups.Term, applied.Term), nil
}

// AppendCertLog records certificates issued to an instance, under the entry's time. If the instance has an entry of
// that time already, AppendCertLog uses a time some nanoseconds later.
func (s *State) AppendCertLog(ctx context.Context, entry record.CertLog) (err error) {
	defer explain(&err, "append to certificate log")
	if err := s.oursCertLog(entry); err != nil {
		return err
	}
	for conflicts := (objstore.Conflicts{}); ; entry.IssuedAt = entry.IssuedAt.Add(1) {
		body, err := entry.Encode()
		if err != nil {
			return err
		}
		key := keys.CertLog(s.options.ShardID, entry.Tenant, entry.IssuedAt, entry.Instance.Storage())
		_, err = s.put(ctx, s.options.Shard, key, body, "")
		if !conflicts.Again(ctx, err) {
			return err
		}
	}
}

func (s *State) oursCertLog(entry record.CertLog) error {
	return errors.Join(belongs("cluster", entry.Cluster, s.options.ClusterID),
		belongs("shard", entry.Shard, s.options.ShardID))
}

// ListCertLog reads a tenant's entries, sorted by tenant and time. An empty tenant selects the entries of all tenants.
func (s *State) ListCertLog(ctx context.Context, tenant string) (_ []record.CertLog, err error) {
	defer explain(&err, "list certificate log")
	if err := s.checkShard(); err != nil {
		return nil, err
	}
	prefix := keys.CertLogPrefix(s.options.ShardID)
	if tenant != "" {
		prefix += tenant + "."
	}
	entries, err := s.options.Shard.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	return load(ctx, s, len(entries), func(ctx context.Context, i int) (_ record.CertLog, err error) {
		defer explain(&err, "%s", entries[i].Key)
		entry, _, err := read(ctx, s.options.Shard, entries[i].Key, checked(record.Decode, s.oursCertLog))
		return entry, err
	})
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
func (s *State) ReadHome(ctx context.Context) (_ record.Home, _ objstore.Token, err error) {
	defer explain(&err, "read the home of shard %s", s.options.ShardID)
	return read(ctx, s.options.Shard, keys.Home(s.options.ShardID), orDamaged(record.Decode[record.Home]))
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
		if err == nil {
			_, err = s.put(ctx, s.options.Shard, keys.Home(s.options.ShardID), body, token)
		}
		if !conflicts.Again(ctx, err) {
			explain(&err, "write the home of shard %s", s.options.ShardID)
			return home, err
		}
	}
}

// ReadServerReport reads the report that was last written about a new server of the shard. It returns
// objstore.ErrNotFound if there is none.
func (s *State) ReadServerReport(ctx context.Context) (_ record.ServerReport, _ objstore.Token, err error) {
	defer explain(&err, "read server report")
	return read(ctx, s.options.Shard, keys.ServerReport(s.options.ShardID), record.Decode[record.ServerReport])
}

// WriteServerReport replaces the report about a new server of the shard. The last writer wins.
func (s *State) WriteServerReport(ctx context.Context, report record.ServerReport) (err error) {
	defer explain(&err, "write server report")
	if err := s.checkShard(); err != nil {
		return err
	}
	body, err := report.Encode()
	if err != nil {
		return err
	}
	for conflicts := (objstore.Conflicts{}); ; {
		object, err := s.options.Shard.Get(ctx, keys.ServerReport(s.options.ShardID))
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
		_, err = s.put(ctx, s.options.Shard, keys.ServerReport(s.options.ShardID), body, object.Token)
		if !conflicts.Again(ctx, err) {
			return err
		}
	}
}
