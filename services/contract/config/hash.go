package config

import (
	"crypto/sha256"
	"encoding/hex"
)

// runtimeInput and infraInput hold exactly the fields from which a group's hashes are computed. The hashes are computed
// before rendering. Fields that are unset or have their default value are left out, so a new field changes no hash
// until it is set. Both hashes are stored in the tags and records of running VMs. So a change of these structs makes
// every running VM outdated.
type (
	runtimeInput struct {
		Vars         map[string]string      `json:"vars,omitempty"`
		Files        map[string]File        `json:"files,omitempty"`
		Certificates map[string]Certificate `json:"certificates,omitempty"` // certificates that the files use
		HealthChecks map[string]HealthCheck `json:"health_checks,omitempty"`
	}
	infraInput struct {
		Args         map[string]any `json:"args,omitempty"`
		InstanceType string         `json:"instance_type,omitempty"`
		SubnetPool   string         `json:"subnet_pool,omitempty"`
		Userdata     Userdata       `json:"userdata,omitzero"`
		Kind         string         `json:"kind,omitempty"`
		Arch         string         `json:"arch,omitempty"`
		Revision     string         `json:"revision,omitempty"` // of the rollout
	}
)

func (s *Shard) runtimeHash(g Group) string {
	return hash(runtimeInput{Vars: g.Vars, Files: g.Files, Certificates: s.certificatesOf(g),
		HealthChecks: g.HealthChecks})
}

func infraHash(g Group) string {
	return hash(infraInput{g.Args, g.InstanceType, g.SubnetPool, g.Userdata, g.Kind, g.Arch, g.Rollout.Revision})
}

// hash returns the first 16 bytes, in hex, of the SHA-256 of the value's JSON. Keys in that JSON are sorted.
func hash[T any](in T) string {
	in = cloned(in)
	unfill(&in)
	sum := sha256.Sum256(marshal(in))
	return hex.EncodeToString(sum[:16])
}
