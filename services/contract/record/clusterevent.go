package record

import "time"

// ClusterEventSchema is the newest version of an entry of the cluster journal.
const ClusterEventSchema = 1

// ClusterEvent is one change that a person made in the bucket, `cluster/journal/{time}.{nonce}.json`. It never holds a
// secret. It is written once, after the change, and never changed.
type ClusterEvent struct {
	Schema int       `json:"schema"`
	At     time.Time `json:"at"`
	// Kind is what was done, such as secret_set.
	Kind string `json:"kind"`
	// Actor is the user and the machine that made the change, according to that machine.
	Actor string `json:"actor"`
	// Shard, Tenant and Subject name what was changed. Subject is the name of a secret or the ID of an operator.
	Shard   string `json:"shard,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Subject string `json:"subject,omitempty"`
	Message string `json:"message,omitempty"`
}

// Encode checks the entry and returns it as one line of JSON, with times in UTC.
func (e ClusterEvent) Encode() ([]byte, error) {
	utc(&e.At)
	return encode("cluster event", e)
}

// DecodeClusterEvent parses an entry strictly and checks it. The error is [ErrNewer] if a newer program wrote the
// entry.
func DecodeClusterEvent(data []byte) (ClusterEvent, error) {
	return decode[ClusterEvent]("cluster event", data, ClusterEventSchema)
}

// Validate returns an error that lists everything wrong with the entry.
func (e ClusterEvent) Validate() error {
	var p problems
	p.check(e.Schema == ClusterEventSchema, "schema: is %d, want %d", e.Schema, ClusterEventSchema)
	p.time("at", e.At, true)
	p.text("kind", e.Kind, maxText, true)
	p.text("actor", e.Actor, maxText, true)
	p.text("shard", e.Shard, maxText, false)
	p.text("tenant", e.Tenant, maxText, false)
	p.text("subject", e.Subject, maxText, false)
	p.text("message", e.Message, maxText, false)
	return p.err("cluster event")
}
