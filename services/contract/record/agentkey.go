package record

import "github.com/nstance-kit/nstance/services/contract/ident"

// AgentKeySchema is the newest version of an agent key.
const AgentKeySchema = 1

// AgentKey tells to which instance a public key belongs, `cluster/key/{public key}.json`. It is written once and never
// changed, and it outlives the instance. So no other instance of the cluster ever gets a certificate for the key.
type AgentKey struct {
	Schema   int      `json:"schema"`
	Cluster  string   `json:"cluster"`
	Shard    string   `json:"shard"`
	Tenant   string   `json:"tenant"`
	Instance ident.ID `json:"instance"`
}

// Encode checks the agent key and returns it as one line of JSON.
func (k AgentKey) Encode() ([]byte, error) {
	return encode("agent key", k)
}

// DecodeAgentKey parses an agent key strictly and checks it. The error is [ErrNewer] if a newer program wrote it.
func DecodeAgentKey(data []byte) (AgentKey, error) {
	return decode[AgentKey]("agent key", data, AgentKeySchema)
}

// Validate returns an error that lists everything wrong with the agent key.
func (k AgentKey) Validate() error {
	var p problems
	p.check(k.Schema == AgentKeySchema, "schema: is %d, want %d", k.Schema, AgentKeySchema)
	p.add("cluster", ident.ValidateClusterName(k.Cluster))
	p.add("shard", ident.ValidateName(k.Shard))
	p.add("tenant", ident.ValidateTenantName(k.Tenant))
	p.add("instance", ident.ValidateKind(k.Instance.Prefix()))
	return p.err("agent key of " + k.Instance.String())
}
