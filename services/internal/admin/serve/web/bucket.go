package web

import (
	"context"
	"time"
)

// Bucket gives access to data in the bucket that the operator API does not return. It must be safe for concurrent use.
type Bucket interface {
	// Lock reads the election lock of a shard from the bucket. The page calls Lock only for a shard that does not
	// answer.
	Lock(ctx context.Context, shard string) Lock
	// Compare compares the configuration that a leader of the shard applied last with the newest configuration in the
	// bucket.
	Compare(ctx context.Context, shard string) (Comparison, error)
}

// Lock is the election lock of a shard. Holder is empty if there is no lock, or if it cannot be read.
type Lock struct {
	Holder, Heir string
	Term         uint64
	// RenewedAt is the time of the last renewal. It is measured by the bucket's clock.
	RenewedAt time.Time
	Lease     time.Duration
	// Waits describes what the shard waits for. Next describes what a person should do, and may be empty.
	Waits, Next string
}

// Comparison is the difference between the configuration in force and the newest configuration in the bucket.
type Comparison struct {
	// Same means that the newest configuration is in force.
	Same bool
	// Invalid means that this version of nstance-admin cannot read one of the two configurations, so that the effects
	// are not known.
	Invalid bool
	// Rolling lists the groups in which the newest configuration would replace instances. Effects lists all its effects
	// on running instances.
	Rolling, Effects []string
	// Diff holds the first lines of the difference in the unified format. More is the number of lines that are left
	// out.
	Diff []DiffLine
	More int
}

// DiffLine is a line of a difference in the unified format. Class is "added" for a line that starts with "+", "removed"
// for "-", "position" for "@", and otherwise empty.
type DiffLine struct{ Class, Text string }
