package record

import (
	"fmt"
	"slices"
	"time"
)

// HomeSchema is the newest version of a shard's home.
const HomeSchema = 1

// maxHomeBuckets is the largest number of names of a home's bucket.
const maxHomeBuckets = 16

// Home names the bucket in which a shard's servers may lead, `shard/{shard}/home.json`. A copy of the bucket contains
// it too, so a server that uses the copy finds another name than its own, and does not lead.
type Home struct {
	Schema int `json:"schema"`
	// Buckets are the names of the bucket, because servers may reach it at several endpoints. If there is none, the
	// next leader adds the name by which it knows its bucket.
	Buckets []Bucket `json:"buckets,omitempty"`
	// RestoredAt is when a person last made the bucket the home of the shard with `nstance-admin cluster restore`.
	RestoredAt time.Time `json:"restored_at,omitzero"`
	// OrphansWait means that no orphan is terminated, however few there are, before a person has confirmed the orphans.
	OrphansWait bool `json:"orphans_wait,omitempty"`
	// SnapshotAt is when the archive that contains this home was made. It is zero in a bucket from which nothing was
	// restored.
	SnapshotAt time.Time `json:"snapshot_at,omitzero"`
}

// Bucket is the name of a bucket, as a server knows it. Two values can be compared with ==.
type Bucket struct {
	Provider string `json:"provider"`
	// Endpoint is the URL of the store. It is empty for a store whose buckets have names that are unique worldwide.
	Endpoint string `json:"endpoint,omitempty"`
	Name     string `json:"name,omitempty"`
	Prefix   string `json:"prefix,omitempty"`
}

// String returns the name for a person.
func (b Bucket) String() string {
	text := b.Provider + " bucket " + b.Name
	if b.Prefix != "" {
		text += " with prefix " + b.Prefix
	}
	if b.Endpoint != "" {
		text += " at " + b.Endpoint
	}
	return text
}

// Is reports whether a server that knows its bucket by the given name may lead.
func (h Home) Is(here Bucket) bool {
	return h.SnapshotAt.IsZero() && (len(h.Buckets) == 0 || slices.Contains(h.Buckets, here))
}

// MayBe is like Is, but does not compare endpoints, because people may use another endpoint than servers.
func (h Home) MayBe(here Bucket) bool {
	return h.Is(here) || h.SnapshotAt.IsZero() && slices.ContainsFunc(h.Buckets, func(b Bucket) bool {
		b.Endpoint = here.Endpoint
		return b == here
	})
}

// String returns what the home is, for a person.
func (h Home) String() string {
	switch {
	case !h.SnapshotAt.IsZero():
		return "a snapshot of " + h.SnapshotAt.UTC().Format(time.RFC3339)
	case len(h.Buckets) == 0:
		return "the bucket of the next leader"
	case len(h.Buckets) > 1:
		return fmt.Sprintf("%s, or %d more names of it", h.Buckets[0], len(h.Buckets)-1)
	}
	return h.Buckets[0].String()
}

// Encode checks the home and returns it as one line of JSON, with times in UTC.
func (h Home) Encode() ([]byte, error) {
	utc(&h.RestoredAt, &h.SnapshotAt)
	return encode("home", h)
}

// DecodeHome parses a home strictly and checks it. The error is [ErrNewer] if a newer program wrote the home.
func DecodeHome(data []byte) (Home, error) { return decode[Home]("home", data, HomeSchema) }

// Validate returns an error that lists everything wrong with the home.
func (h Home) Validate() error {
	var p problems
	p.check(h.Schema == HomeSchema, "schema: is %d, want %d", h.Schema, HomeSchema)
	p.check(len(h.Buckets) <= maxHomeBuckets, "buckets: are %d, at most %d are allowed", len(h.Buckets),
		maxHomeBuckets)
	for _, b := range h.Buckets {
		p.text("provider", b.Provider, maxText, true)
		p.text("endpoint", b.Endpoint, maxText, false)
		p.text("name", b.Name, maxText, false)
		p.text("prefix", b.Prefix, maxText, false)
	}
	p.time("restored_at", h.RestoredAt, false)
	p.time("snapshot_at", h.SnapshotAt, false)
	return p.err("home")
}
