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
	"log/slog"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/keys"
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
