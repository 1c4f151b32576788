// Package ident owns names and IDs: how they are made, written and checked.
//
// IDs are puidv7: a three-letter prefix for the kind of object, and a UUIDv7 (RFC 9562, section 5.7). An ID has two
// forms: the written form for people, and the storage form for bucket keys. Parsing is strict: every ID has exactly one
// spelling in each form.
//
// Invariant: an [ID] that is not zero has a valid prefix and a valid UUIDv7, so its forms can be used in bucket keys,
// tags and host names without further checks.
package ident

import (
	"bytes"
	"cmp"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
)

// OperatorPrefix is the prefix of operator IDs. It is not available as a template's kind.
const OperatorPrefix = "opr"

const (
	prefixLen  = 3
	idLen      = prefixLen + 26                     // written form: 128 bits in base32
	storageLen = 36 + 1 + 3                         // UUID with dashes, dash, prefix
	maxMillis  = 1<<48 - 1                          // UUIDv7 timestamps have 48 bits
	alphabet   = "0123456789abcdefghjkmnpqrstvwxyz" // Crockford's base32 alphabet in lower case
)

// encoding pads with zero bits at the end (RFC 4648, section 6), unlike ULIDs, which pad at the start.
var encoding = base32.NewEncoding(alphabet).WithPadding(base32.NoPadding)

// ID identifies an instance or an operator. The zero value means "none". IDs are comparable values and may be map keys.
type ID struct {
	prefix [prefixLen]byte
	uuid   uuid.UUID
}

// NewID makes an ID with the given prefix, the time now (kept in UTC milliseconds) and 62 random bits from rand,
// usually crypto/rand.Reader. The 12 bits after the milliseconds hold the fraction of the millisecond (RFC 9562,
// section 6.2, method 3). So IDs that are made one after the other sort in that order, as long as the clock advances.
// NewID fails if the prefix is invalid, if the time is before 1970 or after 10889, or if rand fails.
func NewID(prefix string, now time.Time, rand io.Reader) (ID, error) {
	if err := ValidatePrefix(prefix); err != nil {
		return ID{}, err
	}
	ms := now.UnixMilli()
	if ms < 0 || ms > maxMillis {
		return ID{}, fmt.Errorf("make id: the time %s does not fit into a UUIDv7", now.UTC().Format(time.RFC3339))
	}
	var id ID
	copy(id.prefix[:], prefix)
	if _, err := io.ReadFull(rand, id.uuid[8:]); err != nil {
		return ID{}, fmt.Errorf("make id: read random bytes: %w", err)
	}
	fraction := uint64(now.Nanosecond()%int(time.Millisecond)) << 12 / uint64(time.Millisecond)
	binary.BigEndian.PutUint64(id.uuid[:8], uint64(ms)<<16|0x7000|fraction)
	id.uuid[8] = id.uuid[8]&0x3f | 0x80
	return id, nil
}

// ParseID reads the written form: the prefix and 26 lower-case characters of Crockford's base32.
func ParseID(s string) (ID, error) {
	if len(s) != idLen {
		return ID{}, fmt.Errorf("id %s: want %d characters, have %d", quote(s), idLen, len(s))
	}
	var id ID
	// Decode skips line breaks and ignores padding bits. Therefore, the decoded bytes are encoded again and compared
	// with the text.
	n, err := encoding.Decode(id.uuid[:], []byte(s[prefixLen:]))
	if err != nil {
		return ID{}, fmt.Errorf("id %s: want lower-case base32 (%s) after the prefix", quote(s), alphabet)
	}
	if n != len(id.uuid) || encoding.EncodeToString(id.uuid[:]) != s[prefixLen:] {
		return ID{},
			fmt.Errorf("id %s: the last character has padding bits that are not zero, or the text is not base32",
				quote(s))
	}
	return finish(id, s[:prefixLen], s)
}

// ParseStorageID reads the storage form, "{uuid}-{prefix}".
func ParseStorageID(s string) (ID, error) {
	if len(s) != storageLen || s[storageLen-prefixLen-1] != '-' {
		return ID{}, fmt.Errorf("storage id %s: want {uuid}-{prefix}, %d characters", quote(s), storageLen)
	}
	text := s[:storageLen-prefixLen-1]
	u, err := uuid.Parse(text)
	if err != nil || u.String() != text {
		return ID{}, fmt.Errorf("storage id %s: want a UUID in lower case with dashes", quote(s))
	}
	return finish(ID{uuid: u}, s[storageLen-prefixLen:], s)
}

func finish(id ID, prefix, s string) (ID, error) {
	if err := ValidatePrefix(prefix); err != nil {
		return ID{}, fmt.Errorf("id %s: %w", quote(s), err)
	}
	if id.uuid.Version() != 7 || id.uuid.Variant() != uuid.RFC4122 {
		return ID{}, fmt.Errorf("id %s: its UUID is not version 7", quote(s))
	}
	copy(id.prefix[:], prefix)
	return id, nil
}

// IsZero reports whether the ID is "none".
func (id ID) IsZero() bool { return id == ID{} }

// Prefix returns the three letters for the kind of object: [OperatorPrefix], or a template's kind. It is "" for the
// zero ID.
func (id ID) Prefix() string {
	if id.IsZero() {
		return ""
	}
	return string(id.prefix[:])
}

// String returns the written form, or "" for the zero ID.
func (id ID) String() string {
	if id.IsZero() {
		return ""
	}
	return id.Prefix() + encoding.EncodeToString(id.uuid[:])
}

// Storage returns the form used in bucket keys, "{uuid}-{prefix}", which sorts by time. For the zero ID it returns "".
func (id ID) Storage() string {
	if id.IsZero() {
		return ""
	}
	return id.uuid.String() + "-" + id.Prefix()
}

// Time returns when the ID was made, in UTC, to the millisecond. For the zero ID it returns the zero time.
func (id ID) Time() time.Time {
	if id.IsZero() {
		return time.Time{}
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id.uuid[:8]) >> 16)).UTC()
}

// Compare orders IDs by the time at which they were made. Their storage forms sort in the same order.
func (id ID) Compare(other ID) int {
	return cmp.Or(bytes.Compare(id.uuid[:], other.uuid[:]), bytes.Compare(id.prefix[:], other.prefix[:]))
}

// MarshalText returns the written form, or an empty text for the zero ID.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what [ID.MarshalText] wrote: the written form, or empty text for the zero ID.
func (id *ID) UnmarshalText(text []byte) error {
	if id == nil {
		return errors.New("unmarshal id: nil receiver")
	}
	if len(text) == 0 {
		*id = ID{}
		return nil
	}
	parsed, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// dnsPattern matches a DNS name with labels as in RFC 1123. Labels may contain underscores, and the first one may be
// "*".
var dnsPattern = regexp.MustCompile(
	`^(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)

// IsDNSName reports whether a text is a DNS name. Its first label may be a wildcard.
func IsDNSName(s string) bool { return len(s) <= 253 && dnsPattern.MatchString(s) }

// ValidateHostname checks the host name of a machine: labels of letters, digits, dashes, and underscores. An empty name
// is valid and means unknown.
func ValidateHostname(name string) error {
	if name == "" {
		return nil
	}
	if len(name) > 253 {
		return errors.New("has more than 253 characters")
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return errors.New("has an empty label, or one of more than 63 characters")
		}
		for i := range len(label) {
			c := label[i]
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return errors.New("has a character that is not a letter, digit, dash or underscore")
			}
		}
	}
	return nil
}

// ParseIPv4 returns the canonical form of the IPv4 address of a machine. An empty text is valid and returned unchanged.
func ParseIPv4(text string) (string, error) { return parseIP(text, netip.Addr.Is4) }

// ParseIPv6 is [ParseIPv4] for IPv6.
func ParseIPv6(text string) (string, error) { return parseIP(text, netip.Addr.Is6) }

func parseIP(text string, family func(netip.Addr) bool) (string, error) {
	if text == "" {
		return "", nil
	}
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil || !family(addr) || addr.Is4In6():
		return "", errors.New("is not an address of this family")
	case addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast():
		return "", errors.New("is not the address of one machine")
	}
	return addr.String(), nil
}
