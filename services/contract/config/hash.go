package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// A group's hashes cover exactly the fields of these two structs. They are computed before rendering, from values
// without their defaults: a field that a later version adds changes no hash until somebody sets it. Both are kept in
// the tags and records of running VMs: a change of what is written here rotates every fleet.
type (
	runtimeInput struct {
		Vars         map[string]string      `json:"vars,omitempty"`
		Files        map[string]File        `json:"files,omitempty"`
		Certificates map[string]Certificate `json:"certificates,omitempty"` // those that the files use
	}
	infraInput struct {
		Args         map[string]any `json:"args,omitempty"`
		InstanceType string         `json:"instance_type,omitempty"`
		SubnetPool   string         `json:"subnet_pool,omitempty"`
		Userdata     Userdata       `json:"userdata,omitzero"`
		Kind         string         `json:"kind,omitempty"`
		Arch         string         `json:"arch,omitempty"`
	}
)

func (s *Shard) runtimeHash(g Group) string {
	in := runtimeInput{Vars: g.Vars, Files: g.Files, Certificates: map[string]Certificate{}}
	for _, f := range g.Files {
		if f.Kind == "certificate" {
			in.Certificates[f.Template] = s.Certificates[f.Template]
		}
	}
	return hash(in)
}

func infraHash(g Group) string {
	return hash(infraInput{g.Args, g.InstanceType, g.SubnetPool, g.Userdata, g.Kind, g.Arch})
}

// hash is the first 16 bytes, in hex, of the SHA-256 of a value's JSON, which has sorted keys.
func hash[T any](in T) string {
	in = cloned(in)
	unfill(&in)
	text, err := json.Marshal(in)
	if err != nil {
		panic("config: a group that is not valid was hashed: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
