package record

import (
	"bytes"
	"fmt"
)

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
	head, err := encode("applied configuration", a) // ends in a line break
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
	a, err := decode[Applied]("applied configuration", head, AppliedSchema)
	if err == nil {
		a.Body = bytes.Clone(body)
	}
	return a, err
}

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
