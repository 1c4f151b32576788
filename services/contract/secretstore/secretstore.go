// Package secretstore owns where the cluster's secrets live: a small interface, the back end that seals them into
// object storage, and a cache. Back ends of clouds are sub-packages; all of them run the conformance suite in
// secretstoretest.
//
// Invariant: a secret leaves this process sealed by us, or into a service that encrypts; never into object storage in
// the clear.
package secretstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/keys"
)

// Names of the secrets that are ours. All others are the user's.
const (
	CAKey    = "ca.key"                 // CA certificate and private key
	NonceKey = "registration-nonce.key" // private key that signs registration nonces
)

// MaxValue is the largest secret in bytes. Services of clouds take less, and say so.
const MaxValue = envelope.MaxPlaintext

// Errors of a [Store]; messages say more. Any other error says nothing about whether a secret exists.
var (
	// ErrNotFound: there is no such secret. One that cannot be read or opened is another error, never this.
	ErrNotFound = errors.New("secret not found")
	// ErrExists: a Put with IfAbsent found one. Nothing was written.
	ErrExists = errors.New("secret exists")
	// ErrInvalid: a bad name or value. Nothing was sent.
	ErrInvalid = errors.New("invalid secret")
	// ErrNoKey: secrets in object storage need an encryption key, and none is configured. Nothing was written.
	ErrNoKey = errors.New("no encryption key is configured: secrets are not stored without one")
)

// Condition says when a Put may take effect. The zero Condition is invalid.
type Condition int

// The conditions.
const (
	Any      Condition = iota + 1 // whatever is there
	IfAbsent                      // only if there is no such secret
)

// Store holds secrets by name (see keys.ValidateSecretName). All methods may be called concurrently.
type Store interface {
	// Get returns a secret as of some moment during the call: every Put that was acknowledged before is seen.
	Get(ctx context.Context, name string) (Secret, error)

	// Put stores a value of 1 to [MaxValue] bytes. nil: it is there; for two racing IfAbsent, of one caller only. After
	// an error other than those of this package, it may or may not be there, or arrive later: Get tells whose it is.
	Put(ctx context.Context, name string, value Value, cond Condition) error

	// Delete removes a secret; a missing one is no error.
	Delete(ctx context.Context, name string) error

	// List returns the names of all secrets, sorted.
	List(ctx context.Context) ([]string, error)
}

// Secret is one secret as it was read.
type Secret struct {
	Name  string
	Value Value
	// KeyID names the encryption key that sealed it; empty where a service encrypts.
	KeyID string
}

// Value is the content of a secret. It does not show itself.
type Value struct {
	content func() []byte // a function: see envelope.Key
}

// NewValue copies content.
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

// Len is the size of the content in bytes.
func (v Value) Len() int {
	if v.content == nil {
		return 0
	}
	return len(v.content())
}

func (v Value) String() string { return "[secret]" }

// GoString redacts.
func (v Value) GoString() string { return v.String() }

// LogValue redacts.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalText redacts, in JSON too. There is no way back.
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// ValidateName checks a name, wrapping [ErrInvalid]. Back ends call it first.
func ValidateName(name string) error {
	if err := keys.ValidateSecretName(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// ValidatePut checks the arguments of a Put, wrapping [ErrInvalid]. Back ends call it first.
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
