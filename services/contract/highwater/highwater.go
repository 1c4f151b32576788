// Package highwater remembers, for each object of a bucket, the highest version that was ever seen. So it detects when
// an object is rolled back to an earlier version. A process keeps its [Marks] in memory. The shard's election lock
// stores them for the next process.
package highwater

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// ErrRolledBack means that an object has a lower version than was seen before. An earlier version was written back over
// a newer one.
var ErrRolledBack = errors.New("an earlier version was written back")

// MaxVersion is above every version: a thousand years in milliseconds.
const MaxVersion = 1 << 45

// An encoded mark consists of a checksum and the object's version, big-endian. The checksum is the start of the SHA-256
// sum of [Marks.Scope] and the object's key.
const (
	sumSize     = 8
	versionSize = 6
	markSize    = sumSize + versionSize
	// maxEncoded is the maximum number of encoded marks. They take 9.6 kB.
	maxEncoded = 512
)

// sum is the checksum that identifies an object's key.
type sum [sumSize]byte

func (m *Marks) sumOf(key string) sum {
	full := sha256.Sum256([]byte(m.Scope + "\x00" + key))
	return sum(full[:sumSize])
}

// Marks holds the highest version seen of each object, by its key. The zero Marks is ready for use. It is safe for
// concurrent use.
type Marks struct {
	// Scope is the ID of the cluster. It must be set before use. Marks that were made with another scope can be merged,
	// but have no effect.
	Scope string

	mu      sync.Mutex
	highest map[sum]uint64
	encoded string // the result of the last Encode, empty after a change
}

// Observe records the version of an object that was read. The parameter "before" is the mark that the object had when
// the read began. If the version is lower than that mark, Observe returns [ErrRolledBack]. If a write raises the mark
// after the read began, that is no error. Unsigned objects have version 0.
func (m *Marks) Observe(key string, before, version uint64) error {
	if version < before {
		return fmt.Errorf("%s has version %d, and version %d was there before: %w", key, version, before, ErrRolledBack)
	}
	m.Raise(key, version)
	return nil
}

// Raise raises the mark of an object to at least version.
func (m *Marks) Raise(key string, version uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.raise(m.sumOf(key), version)
}

func (m *Marks) raise(of sum, version uint64) {
	if version <= m.highest[of] {
		return
	}
	if m.highest == nil {
		m.highest = map[sum]uint64{}
	}
	m.highest[of], m.encoded = version, ""
}

// Highest returns the highest version seen of an object, 0 if there is none.
func (m *Marks) Highest(key string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.highest[m.sumOf(key)]
}

// Encode returns the marks as text for [Marks.Merge], empty if there are none. The same marks give the same text. If
// there are more than 512 marks, Encode leaves out those with the lowest versions. Marks of secrets and of the trust
// bundle are kept, because their versions are milliseconds since 1970. Versions of other documents count from 1.
func (m *Marks) Encode() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.encoded != "" {
		return m.encoded
	}
	sums := slices.SortedFunc(maps.Keys(m.highest), func(a, b sum) int {
		return cmp.Or(cmp.Compare(m.highest[b], m.highest[a]), bytes.Compare(a[:], b[:]))
	})
	var data []byte
	for _, of := range sums[:min(len(sums), maxEncoded)] {
		var version [8]byte
		binary.BigEndian.PutUint64(version[:], min(m.highest[of], MaxVersion))
		data = append(append(data, of[:]...), version[8-versionSize:]...)
	}
	m.encoded = base64.RawStdEncoding.EncodeToString(data)
	return m.encoded
}

// Merge raises each mark to its value in text if that value is higher. text is a result of [Marks.Encode]. If text is
// invalid, Merge returns an error and changes nothing.
func (m *Marks) Merge(text string) error {
	data, err := decode(text)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for mark := range slices.Chunk(data, markSize) {
		m.raise(sum(mark[:sumSize]), versionOf(mark))
	}
	return nil
}

// Validate returns an error if [Marks.Merge] would refuse the text.
func Validate(text string) error {
	_, err := decode(text)
	return err
}

func versionOf(mark []byte) uint64 {
	return binary.BigEndian.Uint64(append([]byte{0, 0}, mark[sumSize:]...))
}

// decode returns the encoded marks that text contains, one after the other. Each takes markSize bytes.
func decode(text string) ([]byte, error) {
	data, err := base64.RawStdEncoding.Strict().DecodeString(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("decode marks: %w", err)
	case len(data)%markSize != 0:
		return nil, fmt.Errorf("decode marks: %d bytes, want a multiple of %d", len(data), markSize)
	case len(data) > maxEncoded*markSize:
		return nil, fmt.Errorf("decode marks: %d marks, at most %d are allowed", len(data)/markSize, maxEncoded)
	}
	for mark := range slices.Chunk(data, markSize) {
		if version := versionOf(mark); version > MaxVersion {
			return nil, fmt.Errorf("decode marks: version %d, at most %d is allowed", version, uint64(MaxVersion))
		}
	}
	return data, nil
}
