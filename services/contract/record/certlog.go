package record

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// CertLogSchema is the newest version of the certificate log entry.
const CertLogSchema = 1

// Kinds of certificates in the log.
const (
	CertAgent    = "agent"    // an agent's client certificate
	CertOperator = "operator" // an operator's client certificate
	CertClient   = "client"   // from a certificate template
	CertServer   = "server"   // from a certificate template
)

// CertLog is one batch of certificates issued to one instance, `shard/{shard}/certlog/{tenant}.{time}.{instance}.json`.
// It is written once and never changed. It identifies certificates, but does not contain them.
type CertLog struct {
	Schema   int       `json:"schema"`
	Cluster  string    `json:"cluster"`
	Shard    string    `json:"shard"`
	Tenant   string    `json:"tenant"`
	Instance ident.ID  `json:"instance"`
	Term     uint64    `json:"term"`
	Writer   string    `json:"writer"`
	IssuedAt time.Time `json:"issued_at"`
	Issued   []Issued  `json:"issued"`
}

// Issued is one certificate of a [CertLog].
type Issued struct {
	Name     string    `json:"name"`
	Kind     string    `json:"kind"`
	Serial   string    `json:"serial"` // hexadecimal
	NotAfter time.Time `json:"not_after"`
}

// Encode checks the entry and returns it as one line of JSON, with times in UTC.
func (l CertLog) Encode() ([]byte, error) {
	l.Issued = slices.Clone(l.Issued)
	utc(&l.IssuedAt)
	for i := range l.Issued {
		utc(&l.Issued[i].NotAfter)
	}
	return encode(l)
}

func (CertLog) kind() (string, int) { return "certificate log", CertLogSchema }

// Validate returns an error that lists everything wrong with the entry.
func (l CertLog) Validate() error {
	var p problems
	p.check(l.Schema == CertLogSchema, "schema: is %d, want %d", l.Schema, CertLogSchema)
	p.add("cluster", ident.ValidateClusterName(l.Cluster))
	p.add("shard", ident.ValidateName(l.Shard))
	p.add("tenant", ident.ValidateTenantName(l.Tenant))
	p.add("instance", ident.ValidateKind(l.Instance.Prefix()))
	p.check(l.Term > 0, "term: is 0")
	p.text("writer", l.Writer, maxWriter, true)
	p.time("issued_at", l.IssuedAt, true)
	p.check(len(l.Issued) > 0, "issued: is empty")
	for n, c := range l.Issued {
		field := fmt.Sprintf("issued[%d].", n)
		p.text(field+"name", c.Name, maxText, true)
		p.check(slices.Contains([]string{CertAgent, CertOperator, CertClient, CertServer}, c.Kind),
			"%skind: %q is unknown", field, c.Kind)
		p.serial(field+"serial", c.Serial)
		p.time(field+"not_after", c.NotAfter, true)
	}
	return p.err("certificate log of " + l.Instance.String())
}

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
func (k AgentKey) Encode() ([]byte, error) { return encode(k) }

func (AgentKey) kind() (string, int) { return "agent key", AgentKeySchema }

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
