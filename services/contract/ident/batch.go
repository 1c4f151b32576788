package ident

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// BatchSize is the number of IDs in a batch.
const BatchSize = 1 << batchBits

const (
	batchBits = 7
	batchMark = "+" // the end of a batch's written form; no ID has it
)

// Batch names [BatchSize] IDs that differ only in their last bits. The position of an ID in the batch is its index, so
// that a VM that knows its batch and its index knows its ID. The zero value means "none".
type Batch struct{ first ID }

// NewBatch makes a batch. Its arguments are those of [NewID].
func NewBatch(prefix string, now time.Time, rand io.Reader) (Batch, error) {
	id, err := NewID(prefix, now, rand)
	if err != nil {
		return Batch{}, err
	}
	return id.Batch(), nil
}

// Batch returns the batch that the ID belongs to, if it belongs to any: every ID has a place in one batch, whether it
// was made for a batch or not.
func (id ID) Batch() Batch {
	id.uuid[len(id.uuid)-1] &^= BatchSize - 1
	return Batch{id}
}

// ParseBatch reads the written form of a batch.
func ParseBatch(s string) (Batch, error) {
	text, marked := strings.CutSuffix(s, batchMark)
	if !marked {
		return Batch{}, fmt.Errorf("batch %s: want an ID and %s", quote(s), batchMark)
	}
	id, err := ParseID(text)
	if err != nil {
		return Batch{}, fmt.Errorf("batch %s: %w", quote(s), err)
	}
	if id.Batch().first != id {
		return Batch{}, fmt.Errorf("batch %s: is not the first ID of a batch", quote(s))
	}
	return Batch{id}, nil
}

// IsZero reports whether the batch is "none".
func (b Batch) IsZero() bool { return b.first.IsZero() }

// String returns the written form: the batch's first ID and a plus sign. It is "" for the zero batch. No ID is written
// like that.
func (b Batch) String() string {
	if b.IsZero() {
		return ""
	}
	return b.first.String() + batchMark
}

// First returns the ID with index 0.
func (b Batch) First() ID { return b.first }

// Member returns the ID with an index. ok is false if the batch is none or has no such index.
func (b Batch) Member(index int) (id ID, ok bool) {
	if b.IsZero() || index < 0 || index >= BatchSize {
		return ID{}, false
	}
	id = b.first
	id.uuid[len(id.uuid)-1] |= byte(index)
	return id, true
}

// Has reports whether an ID belongs to the batch.
func (b Batch) Has(id ID) bool { return !b.IsZero() && !id.IsZero() && id.Batch() == b }

// MarshalText returns the written form, or an empty text for the zero batch.
func (b Batch) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
