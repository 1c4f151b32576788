package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

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
