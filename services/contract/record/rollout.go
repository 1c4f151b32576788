package record

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// RolloutSchema is the newest version of what is stored about a group's rollouts.
const RolloutSchema = 1

// Rollout is what a leader stores about the rollouts of one group, `shard/{shard}/rollout/{tenant}.{group}.json`.
type Rollout struct {
	Schema int `json:"schema"`
	// Revision counts the writes of this document, so that no two versions have the same bytes.
	Revision uint64 `json:"revision"`
	// Term of the leader that wrote it.
	Term   uint64 `json:"term"`
	Tenant string `json:"tenant"`
	Group  string `json:"group"`
	// Trust identifies the CA that signed the document and the CA bundle, see authority.Trust; "": unknown.
	Trust string `json:"trust,omitempty"`
	// Halted is the halt of the group's rollout; nil: none.
	Halted *Halted `json:"halted,omitempty"`
	// Good is the configuration with which a whole rollout finished last; nil: none is known.
	Good *Good `json:"good,omitempty"`
}

// Good is a configuration with which a whole rollout of a group finished.
type Good struct {
	// At is when the rollout had finished.
	At      time.Time    `json:"at"`
	Version GroupVersion `json:"version"`
	// Config is a config.Good as JSON without white space.
	Config json.RawMessage `json:"config"`
}

// Halted is a halt of a group's rollout.
type Halted struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	// Failed identifies the configuration that failed. With another one, the halt has no effect.
	Failed GroupVersion `json:"failed"`
	// GoodFailedAt is when the group's last good configuration, to which it had returned, failed too; zero: it did not.
	// GoodFailed says why.
	GoodFailedAt time.Time `json:"good_failed_at,omitzero"`
	GoodFailed   string    `json:"good_failed,omitempty"`
}

// GroupVersion identifies what the instances of a group are made from. Two values can be compared with ==.
type GroupVersion struct {
	InfraHash   string `json:"infra_hash"`
	RuntimeHash string `json:"runtime_hash"`
	// Subnets of the group's pool, in order, with commas between them.
	Subnets string `json:"subnets,omitempty"`
	// Image is the ID of the image that the query of the group's image found. It is empty if that is not known, or if
	// the group has no on_image_change.
	Image string `json:"image,omitempty"`
}

// Is reports whether v is the version other. An unknown image equals every image.
func (v GroupVersion) Is(other GroupVersion) bool {
	if v.Image == "" || other.Image == "" {
		v.Image, other.Image = "", ""
	}
	return v == other
}

// Encode checks the document and returns it as one line of JSON, with times in UTC.
func (r Rollout) Encode() ([]byte, error) {
	if r.Halted != nil {
		halted := *r.Halted
		utc(&halted.At, &halted.GoodFailedAt)
		r.Halted = &halted
	}
	if r.Good != nil {
		good := *r.Good
		utc(&good.At)
		r.Good = &good
	}
	return encode(r)
}

func (Rollout) kind() (string, int) { return "rollout", RolloutSchema }

// Validate returns an error that lists everything wrong with the document.
func (r Rollout) Validate() error {
	var p problems
	p.check(r.Schema == RolloutSchema, "schema: is %d, want %d", r.Schema, RolloutSchema)
	p.check(r.Revision > 0, "revision: is 0")
	p.check(r.Term > 0, "term: is 0")
	p.add("tenant", ident.ValidateTenantName(r.Tenant))
	p.add("group", ident.ValidateName(r.Group))
	p.trust("trust", r.Trust)
	if h := r.Halted; h != nil {
		p.time("halted.at", h.At, true)
		p.text("halted.reason", h.Reason, maxText, true)
		p.version("halted.failed", h.Failed)
		p.time("halted.good_failed_at", h.GoodFailedAt, h.GoodFailed != "")
		p.text("halted.good_failed", h.GoodFailed, maxText, !h.GoodFailedAt.IsZero())
	}
	if g := r.Good; g != nil {
		p.time("good.at", g.At, true)
		p.version("good.version", g.Version)
		var compact bytes.Buffer
		err := json.Compact(&compact, g.Config)
		p.check(err == nil && bytes.HasPrefix(g.Config, []byte("{")) && bytes.Equal(compact.Bytes(), g.Config),
			"good.config: is no JSON object without white space")
	}
	return p.err("rollout")
}

func (p *problems) version(field string, v GroupVersion) {
	p.text(field+".infra_hash", v.InfraHash, maxText, true)
	p.text(field+".runtime_hash", v.RuntimeHash, maxText, true)
	p.text(field+".subnets", v.Subnets, MaxSize, false)
	p.text(field+".image", v.Image, maxText, false)
}
