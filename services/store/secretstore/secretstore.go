// Package secretstore owns the storage of the cluster's secrets: a small interface, and the back end that seals secrets
// into object storage. Back ends of clouds are sub-packages. All of them run the conformance suite in secretstoretest.
//
// Invariant: a secret leaves this process either sealed by this package, or sent to a service that encrypts it. It is
// never written to object storage in plain text.
package secretstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Names of the secrets that Nstance itself owns. All others belong to the user.
const (
	CAKey         = "ca.key"                 // CA certificate and private key
	NextCAKey     = "ca-next.key"            // the CA that replaces ca.key; only while the CA is rotated
	WorkloadCAKey = "workload-ca.key"        // certificate and key of the CA that signs instances' files, or of two CAs
	NonceKey      = "registration-nonce.key" // private key that signs registration nonces
)

// MaxValue is the maximum size of a secret in bytes. Services of clouds accept less, and return an error that says so.
const MaxValue = envelope.MaxPlaintext

// Errors of a [Store]. The error messages have more details. Any other error does not show whether a secret exists.
var (
	// ErrNotFound means that there is no such secret. A secret that cannot be read or opened is a different error.
	ErrNotFound = errors.New("secret not found")
	// ErrExists means that a Put with IfAbsent found a secret. Nothing was written.
	ErrExists = errors.New("secret exists")
	// ErrInvalid means that a name or value is invalid. Nothing was sent.
	ErrInvalid = errors.New("invalid secret")
	// ErrNoKey means that object storage needs an encryption key and none is configured. Nothing was written.
	ErrNoKey = errors.New("no encryption key is configured: secrets are not stored without one")
)

// Condition defines when a Put may take effect. The zero Condition is invalid.
type Condition int

// Conditions of a Put.
const (
	Any      Condition = iota + 1 // always
	IfAbsent                      // only if there is no such secret
)

// Store holds secrets by name (see keys.ValidateSecretName). All methods are safe for concurrent use.
type Store interface {
	// Get returns a secret. If a Put was acknowledged before Get was called, Get returns that Put's value or a later
	// one.
	Get(ctx context.Context, name string) (Secret, error)

	// Put stores a value of 1 to [MaxValue] bytes. If the error is nil, the value is stored. Of two concurrent Puts
	// with IfAbsent, only one returns nil. After an error that this package does not define, the result is unknown: the
	// value may be stored already, may be stored later, or may never be stored. Get shows which value is stored.
	Put(ctx context.Context, name string, value Value, cond Condition) error

	// Delete removes a secret. A missing secret is not an error.
	Delete(ctx context.Context, name string) error

	// List returns the names of all secrets, sorted.
	List(ctx context.Context) ([]string, error)
}

// Secret is one secret as read from the store.
type Secret struct {
	Name  string
	Value Value
	// KeyID is the ID of the encryption key that sealed the secret. It is empty if a service encrypts the secret.
	KeyID string
	// version is the version of the sealed object. It is 0 if the secret is not stored as a sealed object.
	version uint64
}

// Value is the content of a secret. Formatting it does not show the content.
type Value struct {
	content func() []byte // a function, for the reason given at envelope.Key
}

// NewValue returns a Value with a copy of content.
func NewValue(content []byte) Value {
	own := bytes.Clone(content)
	return Value{func() []byte { return own }}
}

// Reveal returns a copy of the content.
func (v Value) Reveal() []byte {
	if v.content == nil {
		return nil
	}
	return bytes.Clone(v.content())
}

// Len returns the size of the content in bytes.
func (v Value) Len() int {
	if v.content == nil {
		return 0
	}
	return len(v.content())
}

func (v Value) String() string { return "[secret]" }

// GoString returns [Value.String], which is redacted.
func (v Value) GoString() string { return v.String() }

// LogValue returns [Value.String], which is redacted.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalText returns [Value.String], which is redacted. encoding/json uses MarshalText too. A value cannot be
// unmarshaled.
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// ValidateName checks a name. Its error wraps [ErrInvalid]. Back ends call it before they send a request.
func ValidateName(name string) error {
	if err := keys.ValidateSecretName(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// ValidatePut checks the arguments of a Put. Its error wraps [ErrInvalid]. Back ends call it before they send a
// request.
func ValidatePut(name string, value Value, cond Condition) error {
	switch n := value.Len(); {
	case cond != Any && cond != IfAbsent:
		return fmt.Errorf("%w: no condition", ErrInvalid)
	case n == 0:
		return fmt.Errorf("%w: it is empty", ErrInvalid)
	case n > MaxValue:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrInvalid, n, MaxValue)
	}
	return ValidateName(name)
}

// Backend describes a kind of secrets store. Each sub-package has one, and the package secretstore/open lists all of
// them.
type Backend struct {
	// Name is the value of cluster.secrets.provider in the configuration, and of nstance-admin's flag
	// --secrets-provider.
	Name string
	// Open opens a store. It does not connect to the store. Services of clouds use only options.Access.
	Open func(ctx context.Context, settings config.Secrets, options Options) (Store, error)
}

// ObjectStorage describes the back end that seals secrets into the cluster's bucket.
var ObjectStorage = Backend{Name: config.ObjectStorage,
	Open: func(_ context.Context, _ config.Secrets, options Options) (Store, error) {
		return NewObjects(options), nil
	}}

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
