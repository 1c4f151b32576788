package secretstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Objects stores secrets as sealed objects under `cluster/secret/{name}`. It implements [Store].
type Objects struct {
	options Options
}

// Options configures a back end. [NewObjects] needs all fields but Marks, Sleep and Access.
type Options struct {
	Bucket  objstore.Store // the cluster's bucket
	Cluster string         // the cluster's ID: blobs of another cluster do not open
	Ring    keyring.Ring   // without a current key, no secrets can be stored
	Rand    io.Reader      // crypto/rand.Reader except in tests; used concurrently
	// Marks holds the versions that this process has seen, so that Get refuses a secret that was rolled back. If Marks
	// is nil, this store gets Marks of its own.
	Marks *highwater.Marks
	// Sleep waits between attempts of a write with an unknown result. nil uses the real clock.
	Sleep func(context.Context, time.Duration) error
	// Access is for the services of a cloud that has profiles and roles. The zero Access uses the SDK's defaults.
	Access cloud.Access
}

// NewObjects returns the back end for object storage.
func NewObjects(options Options) *Objects {
	if options.Marks == nil {
		options.Marks = &highwater.Marks{}
	}
	return &Objects{options}
}

var _ Store = (*Objects)(nil)

// Get implements [Store]. If the secret cannot be opened, the error is one of those that package envelope defines. If
// another writer has restored an earlier version, the error matches highwater.ErrRolledBack.
func (o *Objects) Get(ctx context.Context, name string) (Secret, error) {
	secret, _, err := o.read(ctx, name)
	if err != nil {
		return Secret{}, fmt.Errorf("get secret %q: %w", name, err)
	}
	return secret, nil
}

func (o *Objects) read(ctx context.Context, name string) (Secret, objstore.Token, error) {
	if err := ValidateName(name); err != nil {
		return Secret{}, "", err
	}
	key := keys.ClusterSecret(name)
	before := o.options.Marks.Highest(key)
	object, err := o.options.Bucket.Get(ctx, key)
	if errors.Is(err, objstore.ErrNotFound) {
		return Secret{}, "", fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return Secret{}, "", err
	}
	id, err := envelope.KeyID(object.Body)
	if err != nil {
		return Secret{}, "", err
	}
	plaintext, version, err := envelope.Open(o.options.Ring.Keys(), o.options.Cluster, name, object.Body)
	if err != nil {
		return Secret{}, "", err
	}
	if err := o.options.Marks.Observe(key, before, version); err != nil {
		return Secret{}, "", err
	}
	return Secret{Name: name, Value: NewValue(plaintext), KeyID: id.String(), version: version}, object.Token, nil
}

// Put implements [Store].
func (o *Objects) Put(ctx context.Context, name string, value Value, cond Condition) error {
	if err := ValidatePut(name, value, cond); err != nil {
		return fmt.Errorf("put secret %q: %w", name, err)
	}
	var err error
	if cond == IfAbsent {
		if err = o.write(ctx, name, value, 0, objstore.IfAbsent()); errors.Is(err, objstore.ErrConflict) {
			err = fmt.Errorf("%w: %w", ErrExists, err)
		}
	} else {
		err = o.replace(ctx, name, value)
	}
	if err != nil {
		return fmt.Errorf("put secret %q: %w", name, err)
	}
	return nil
}

// replace stores a value, whether or not the secret exists. Each write succeeds only if the secret has not changed
// since replace read it. So no version overwrites a higher one.
func (o *Objects) replace(ctx context.Context, name string, value Value) error {
	for conflicts := (objstore.Conflicts{}); ; {
		when := objstore.IfAbsent()
		object, err := o.options.Bucket.Get(ctx, keys.ClusterSecret(name))
		switch {
		case err == nil:
			when = objstore.IfToken(object.Token)
		case !errors.Is(err, objstore.ErrNotFound):
			return err
		}
		err = o.write(ctx, name, value, envelope.Version(object.Body), when)
		if !conflicts.Again(ctx, err) {
			return err
		}
	}
}

// nextVersion returns a version above the version in the bucket (`there`) and above all versions of the key that this
// process has seen. It is at least the present time in milliseconds. So a secret that is deleted and stored again gets
// a higher version.
func (o *Objects) nextVersion(key string, there uint64) uint64 {
	if there > highwater.MaxVersion { // not a version that this package wrote
		there = 0
	}
	return max(uint64(time.Now().UnixMilli()), there+1, o.options.Marks.Highest(key)+1)
}

// write seals the value with a version above the stored version, and puts it with objstore.Settle. The envelope's
// random nonce makes the bytes unique, so that Settle can recognize the put of this call.
func (o *Objects) write(ctx context.Context, name string, value Value, there uint64, when objstore.Condition) error {
	if o.options.Ring.Current.IsZero() {
		return ErrNoKey
	}
	key := keys.ClusterSecret(name)
	version := o.nextVersion(key, there)
	blob, err := envelope.Seal(o.options.Ring.Current, o.options.Cluster, name, version, value.Reveal(), o.options.Rand)
	if err != nil {
		return err
	}
	_, err = objstore.Settle(ctx, o.options.Bucket, key, blob, when, o.options.Sleep)
	if err == nil {
		o.options.Marks.Raise(key, version)
	}
	return err
}

// Delete implements [Store].
func (o *Objects) Delete(ctx context.Context, name string) error {
	if err := ValidateName(name); err != nil {
		return fmt.Errorf("delete secret %q: %w", name, err)
	}
	if err := o.options.Bucket.Delete(ctx, keys.ClusterSecret(name)); err != nil {
		return fmt.Errorf("delete secret %q: %w", name, err)
	}
	return nil
}

// List implements [Store]. If an object's name is not a valid secret name, List returns an error. Otherwise nobody
// would notice the object.
func (o *Objects) List(ctx context.Context) ([]string, error) {
	entries, err := o.options.Bucket.List(ctx, keys.SecretPrefix())
	if err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		name := strings.TrimPrefix(entry.Key, keys.SecretPrefix())
		if err := ValidateName(name); err != nil {
			return nil, fmt.Errorf("list secrets: object %q: %w", entry.Key, err)
		}
		names = append(names, name)
	}
	return names, nil
}

// Reseal seals a secret under the current key if it is sealed under another key, and reports whether it did. If another
// writer stores a value in the meantime, Reseal keeps that value and reseals it.
func (o *Objects) Reseal(ctx context.Context, name string) (bool, error) {
	for conflicts := (objstore.Conflicts{}); ; {
		secret, token, err := o.read(ctx, name)
		if err != nil {
			return false, fmt.Errorf("reseal secret %q: %w", name, err)
		}
		if secret.KeyID == o.options.Ring.Current.ID().String() {
			return false, nil
		}
		err = o.write(ctx, name, secret.Value, secret.version, objstore.IfToken(token))
		if conflicts.Again(ctx, err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("reseal secret %q: %w", name, err)
		}
		return true, nil
	}
}
