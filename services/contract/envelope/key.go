package envelope

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"log/slog"
)

// KeySize is the size of an encryption key in bytes.
const KeySize = 32

const idSize = 8

// ID identifies a key without revealing it. It is the first 64 bits of a hash of the key. Its text form is 16
// hexadecimal characters.
type ID [idSize]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Key is an encryption key. Formatting it shows only its ID. The zero Key can neither seal nor open.
type Key struct {
	// secret is a function, because fmt never calls a function in a field. Some verbs of fmt would print the value
	// behind a pointer, even in a private field.
	secret func() *[KeySize]byte
	id     ID
}

// NewKey makes a key from a copy of exactly [KeySize] bytes.
func NewKey(secret []byte) (Key, error) {
	if len(secret) != KeySize {
		return Key{}, fmt.Errorf("encryption key has %d bytes, want exactly %d", len(secret), KeySize)
	}
	own := [KeySize]byte(secret)
	k := Key{secret: func() *[KeySize]byte { return &own }}
	// The prefix makes the ID different from a plain SHA-256 sum of the key. Such a sum might be published elsewhere.
	sum := sha256.Sum256(append([]byte("nstance encryption key id\x00"), secret...))
	copy(k.id[:], sum[:])
	return k, nil
}

// ID returns the key's ID.
func (k Key) ID() ID { return k.id }

// IsZero reports whether k is the zero Key.
func (k Key) IsZero() bool { return k.secret == nil }

// Equal compares two keys in constant time.
func (k Key) Equal(other Key) bool {
	if k.IsZero() || other.IsZero() {
		return k.IsZero() == other.IsZero()
	}
	return subtle.ConstantTimeCompare(k.secret()[:], other.secret()[:]) == 1
}

func (k Key) String() string {
	if k.IsZero() {
		return "no key"
	}
	return "key " + k.id.String()
}

// GoString returns [Key.String], which is redacted.
func (k Key) GoString() string { return k.String() }

// LogValue returns [Key.String], which is redacted.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText returns [Key.String], which is redacted. encoding/json uses MarshalText too. A key cannot be unmarshaled.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
