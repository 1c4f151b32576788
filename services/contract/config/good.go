package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// OnHaltRollback is the value of [Rollout.OnHalt] that returns a group to its last good configuration.
const OnHaltRollback = "rollback"

// Good is a configuration with which a whole rollout of a group finished: what the group's instances are made from. It
// has no sizes, and nothing that says how instances are replaced.
type Good struct {
	Template           string                 `json:"template"`
	Kind               string                 `json:"kind"`
	Arch               string                 `json:"arch"`
	InstanceType       string                 `json:"instance_type,omitempty"`
	InstanceTypes      []string               `json:"instance_types,omitempty"`
	SubnetPool         string                 `json:"subnet_pool"`
	Subnets            []string               `json:"subnets"`
	Args               map[string]any         `json:"args,omitempty"`
	Vars               map[string]string      `json:"vars,omitempty"`
	Files              map[string]File        `json:"files,omitempty"`
	Certificates       map[string]Certificate `json:"certificates,omitempty"` // certificates that the files use
	HealthChecks       map[string]HealthCheck `json:"health_checks,omitempty"`
	Drain              *DrainHook             `json:"drain,omitempty"`
	Userdata           Userdata               `json:"userdata,omitzero"`
	LoadBalancerHealth bool                   `json:"load_balancer_health,omitempty"`
	Revision           string                 `json:"revision,omitempty"` // of the rollout
	// Images holds the ID of each image of the shard, by name.
	Images map[string]string `json:"images,omitempty"`
	// Chosen is what operators had chosen: the group's entry in groups/. The shard config must still permit it.
	Chosen GroupSpec `json:"chosen,omitzero"`
}

// Halt is a durable halt of a group's rollout (rule 47 of package plan).
type Halt struct {
	record.Halted
	// Wanted is the group with its present configuration, if the group runs another one: the good one; nil: it runs the
	// present one.
	Wanted *Group
	// GoodAt is when a rollout with the good configuration had finished. It is zero if Wanted is nil.
	GoodAt time.Time
	// Kept says why the group does not return to its good configuration although on_halt says so, or "".
	Kept string
	// Over means that the group's configuration has changed, so that the halt has no effect.
	Over bool
}

// RolledBack reports whether the group runs its last good configuration instead of its present one.
func (g *Group) RolledBack() bool { return g.Halt != nil && g.Halt.Wanted != nil }

// Wanted returns the group with its present configuration, even if it is rolled back.
func (g *Group) Wanted() *Group {
	if g.RolledBack() {
		return g.Halt.Wanted
	}
	return g
}

// WithRollout returns the group with what is stored about its rollouts. If a halt returns the group to its good
// configuration, the result is what the function back returns: the group made from that configuration, or an error if
// that is not possible. See [Shard.WithRollout].
func (g Group) WithRollout(stored record.Rollout, back func() (Group, error)) Group {
	if stored.Good != nil {
		g.Good = stored.Good.Version
	}
	if stored.Halted == nil {
		return g
	}
	wanted, failed := g, stored.Halted.Failed
	g.Halt = &Halt{Halted: *stored.Halted, Over: !g.Version(failed.Image).Is(failed)}
	if g.Halt.Over || g.Deleted || g.Rollout.OnHalt != OnHaltRollback {
		return g
	}
	switch {
	case stored.Good == nil:
		g.Halt.Kept = "no rollout of the group has finished yet"
		return g
	case stored.Good.Version.Is(failed):
		g.Halt.Kept = "its last rollout finished with the same configuration"
		return g
	}
	good, err := back()
	if err != nil {
		g.Halt.Kept = err.Error()
		return g
	}
	g.Halt.Wanted, g.Halt.GoodAt = &wanted, stored.Good.At
	good.Halt, good.Good = g.Halt, g.Good
	return good
}

// HaltReason says why the rollout of the group is halted, and what the group runs. It returns "" without a durable halt
// that concerns the group's configuration.
func (g *Group) HaltReason() string {
	halt := g.Halt
	if halt == nil || halt.Over {
		return ""
	}
	text := "the rollout is halted: " + halt.Reason
	if g.RolledBack() {
		text = "the group runs the configuration of " + halt.GoodAt.UTC().Format(time.RFC3339) +
			" again, because its rollout halted: " + halt.Reason
	}
	if halt.GoodFailed != "" {
		text += ". That configuration fails too: " + halt.GoodFailed
	}
	if halt.Kept != "" {
		text += ". The group does not return to its last good configuration: " + halt.Kept
	}
	return text
}

// Version identifies what the group's instances are made from. image is the ID of the group's image, or "".
func (g *Group) Version(image string) record.GroupVersion {
	if !g.Rollout.OnImageChange {
		image = ""
	}
	return record.GroupVersion{InfraHash: g.InfraHash, RuntimeHash: g.RuntimeHash,
		Subnets: strings.Join(g.Subnets, ","), Image: image}
}

// GoodOf returns the configuration of a group that is not rolled back. images holds the IDs of the shard's images, and
// chosen is the group's entry in groups/. The shard must have its defaults filled in.
func (s *Shard) GoodOf(g Group, images map[string]string, chosen GroupSpec) Good {
	chosen.Deleted, chosen.Removed, chosen.Protected = false, nil, nil
	return cloned(Good{Template: g.Template, Kind: g.Kind, Arch: g.Arch,
		InstanceType: g.InstanceType, InstanceTypes: g.InstanceTypes, SubnetPool: g.SubnetPool, Subnets: g.Subnets,
		Args: g.Args, Vars: g.Vars, Files: g.Files, Certificates: s.certificatesOf(g), HealthChecks: g.HealthChecks,
		Drain: g.Drain, Userdata: g.Userdata, LoadBalancerHealth: g.LoadBalancerHealth, Revision: g.Rollout.Revision,
		Images: images, Chosen: chosen})
}

// Encode returns the configuration as JSON.
func (g Good) Encode() []byte { return bytes.TrimSpace(encode(g, "")) }

// parseGood parses what [Good.Encode] returns. It refuses unknown fields, because the instances would lack what they
// say.
func parseGood(src []byte) (Good, error) {
	good, problems := parseAs(&decoder{file: "good configuration", src: src}, func(good Good) []finding {
		c := checker{}
		c.fields(reflect.ValueOf(good), "")
		return c.found
	})
	return good, problems.Err()
}

// WithRollout returns a group with what is stored about its rollouts, as it runs. The shard must have its defaults
// filled in.
func (s *Shard) WithRollout(g Group, stored record.Rollout) Group {
	if s.Terminating {
		return g
	}
	return g.WithRollout(stored, func() (Group, error) {
		good, err := parseGood(stored.Good.Config)
		if err == nil {
			var back Group
			if back, err = s.rolledBack(g, good, stored.Good.Version); err == nil {
				return back, nil
			}
		}
		return Group{}, fmt.Errorf("that configuration cannot be used: %w", err)
	})
}

// rolledBack returns a group as it runs with its good configuration: made from it, but with its present size and its
// present settings for replacements. version is that of the good configuration. The error says why the group cannot
// return to it: the shard config no longer has or permits what it needs.
func (s *Shard) rolledBack(g Group, good Good, version record.GroupVersion) (Group, error) {
	if _, ok := s.Server.SubnetPools[good.SubnetPool]; !ok {
		return Group{}, fmt.Errorf("there is no subnet pool %q any more", good.SubnetPool)
	}
	if _, ok := s.Templates[good.Template]; !ok {
		return Group{}, fmt.Errorf("there is no template %q any more", good.Template)
	}
	if good.Kind != g.Kind {
		return Group{}, fmt.Errorf("its kind was %q", good.Kind)
	}
	c := &checker{s: s, rendered: map[string]bool{}}
	if denied := c.permissions(g.GroupKey, good.Chosen, ""); denied != "" {
		return Group{}, errors.New(denied)
	}
	good = cloned(good)
	back := g
	back.Template, back.Kind, back.Arch = good.Template, good.Kind, good.Arch
	back.InstanceType, back.InstanceTypes = good.InstanceType, good.InstanceTypes
	back.SubnetPool, back.Subnets = good.SubnetPool, good.Subnets
	back.Args, back.Vars, back.Files, back.Certificates = good.Args, good.Vars, good.Files, good.Certificates
	back.HealthChecks, back.Drain, back.Userdata = good.HealthChecks, good.Drain, good.Userdata
	back.LoadBalancerHealth, back.Rollout.Revision, back.Images = good.LoadBalancerHealth, good.Revision, good.Images
	back.RuntimeHash, back.InfraHash = s.runtimeHash(back), infraHash(back)
	if back.Version("") != (record.GroupVersion{InfraHash: version.InfraHash, RuntimeHash: version.RuntimeHash,
		Subnets: version.Subnets}) {
		return Group{}, errors.New("another version of Nstance stored it")
	}
	return back, nil
}

// certificatesOf returns the certificates that the files of a group use.
func (s *Shard) certificatesOf(g Group) map[string]Certificate {
	out := map[string]Certificate{}
	for _, f := range g.Files {
		if f.Kind == "certificate" {
			out[f.Template] = g.CertificateOf(f.Template, s.Certificates)
		}
	}
	return out
}

// CertificateOf returns the certificate template with a name. configured holds those of the shard config.
func (g *Group) CertificateOf(name string, configured map[string]Certificate) Certificate {
	if own, ok := g.Certificates[name]; ok {
		return own
	}
	return configured[name]
}
