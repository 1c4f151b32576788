package record

import (
	"bytes"
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
	return encode(h)
}

func (Home) kind() (string, int) { return "home", HomeSchema }

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

// ServerReportSchema is the newest version of the server report.
const ServerReportSchema = 1

// MaxProblem is the maximum length of [ServerReport.Problem] in bytes.
const MaxProblem = 1 << 10

// ServerReport says whether the newest server of a shard became ready in time, `shard/{shard}/server-report.json`.
// `nstance-server --report-health` on the server's machine writes it.
type ServerReport struct {
	Schema int `json:"schema"`
	// Generation identifies the configuration of the server's machine. The boot script sets it as
	// NSTANCE_SERVER_GENERATION.
	Generation string `json:"generation" support:"plain"`
	// Machine is the provider's ID of the server's machine.
	Machine string `json:"machine" support:"plain"`
	// Problem says why the server is not ready. It is empty for a server that became ready.
	Problem    string    `json:"problem,omitempty" support:"words"`
	ReportedAt time.Time `json:"reported_at"`
}

// Encode checks the report and returns it as one line of JSON, with times in UTC.
func (r ServerReport) Encode() ([]byte, error) {
	utc(&r.ReportedAt)
	return encode(r)
}

func (ServerReport) kind() (string, int) { return "server report", ServerReportSchema }

// Validate returns an error that lists everything wrong with the report.
func (r ServerReport) Validate() error {
	var p problems
	p.check(r.Schema == ServerReportSchema, "schema: is %d, want %d", r.Schema, ServerReportSchema)
	p.text("generation", r.Generation, maxText, true)
	p.text("machine", r.Machine, maxText, true)
	p.text("problem", r.Problem, MaxProblem, false)
	p.time("reported_at", r.ReportedAt, true)
	return p.err("server report")
}

// AppliedSchema is the newest schema version of an applied configuration. The first line of an applied configuration
// contains its version.
const AppliedSchema = 1

// MaxConfig is the maximum size of the configuration in an applied configuration document, in bytes.
const MaxConfig = 4 << 20

// appliedMark begins the first line of an applied configuration. That line is a comment in JSONC, so the whole document
// is still a valid configuration.
const appliedMark = "// nstance-applied "

// Applied is the last configuration that a leader of a shard accepted, `shard/{shard}/applied.jsonc`. A comment in the
// first line says where the configuration came from. The configuration is below that line, unchanged.
type Applied struct {
	Schema int `json:"schema"`
	// Revision counts the writes of this document, so that no two versions have the same bytes.
	Revision uint64 `json:"revision"`
	// Term of the leader that applied it.
	Term uint64 `json:"term"`
	// Source is the token that `config/{shard}.jsonc` had when the leader read it.
	Source string `json:"source"`
	// Trust identifies the CA and the CA bundle that the leader uses, see authority.Trust. It is empty unless the CA
	// was being rotated when the leader's term began.
	Trust string `json:"trust,omitempty"`
	// Body is the configuration, byte for byte.
	Body []byte `json:"-"`
}

// Encode checks the document and returns its bytes.
func (a Applied) Encode() ([]byte, error) {
	head, err := encode(a) // ends in a line break
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{[]byte(appliedMark), head, a.Body}, nil), nil
}

// DecodeApplied reads an applied configuration. It parses the first line strictly, and returns [ErrNewer] if a newer
// program wrote it. It does not parse the configuration itself.
func DecodeApplied(data []byte) (Applied, error) {
	rest, ok := bytes.CutPrefix(data, []byte(appliedMark))
	head, body, found := bytes.Cut(rest, []byte("\n"))
	if !ok || !found {
		return Applied{}, fmt.Errorf("decode applied configuration: its first line does not begin with %q", appliedMark)
	}
	if len(body) > MaxConfig {
		return Applied{}, fmt.Errorf("decode applied configuration: it has %d bytes, at most %d are allowed", len(body),
			MaxConfig)
	}
	a, err := Decode[Applied](head)
	if err == nil {
		a.Body = bytes.Clone(body)
	}
	return a, err
}

func (Applied) kind() (string, int) { return "applied configuration", AppliedSchema }

// Validate returns an error that lists everything wrong with the document.
func (a Applied) Validate() error {
	var p problems
	p.check(a.Schema == AppliedSchema, "schema: is %d, want %d", a.Schema, AppliedSchema)
	p.check(a.Revision > 0, "revision: is 0")
	p.check(a.Term > 0, "term: is 0")
	p.text("source", a.Source, maxText, true)
	p.trust("trust", a.Trust)
	p.check(len(a.Body) <= MaxConfig, "the configuration has %d bytes, at most %d are allowed", len(a.Body), MaxConfig)
	return p.err("applied configuration")
}
