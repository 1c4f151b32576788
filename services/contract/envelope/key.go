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

// ID names a key without telling anything of it: the first 64 bits of a hash of the key. Written in hexadecimal, 16
// characters.
type ID [idSize]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Key is an encryption key. It shows itself as its ID only. The zero Key seals and opens nothing.
type Key struct {
	// A function, because fmt follows pointers in private fields for some verbs, and never calls what it finds.
	secret func() *[KeySize]byte
	id     ID
}

// NewKey makes a key of exactly [KeySize] bytes, which are copied.
func NewKey(secret []byte) (Key, error) {
	if len(secret) != KeySize {
		return Key{}, fmt.Errorf("encryption key has %d bytes, want exactly %d", len(secret), KeySize)
	}
	own := [KeySize]byte(secret)
	k := Key{secret: func() *[KeySize]byte { return &own }}
	// The prefix keeps the ID apart from every other hash of the key that anyone may publish.
	sum := sha256.Sum256(append([]byte("nstance encryption key id\x00"), secret...))
	copy(k.id[:], sum[:])
	return k, nil
}

// ID returns the key's ID.
func (k Key) ID() ID { return k.id }

// IsZero reports whether there is no key.
func (k Key) IsZero() bool { return k.secret == nil }

// Equal compares in constant time.
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

// GoString redacts.
func (k Key) GoString() string { return k.String() }

// LogValue redacts.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText redacts, in JSON too. There is no way back.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
