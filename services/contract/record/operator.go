package record

import (
	"cmp"
	"crypto/ed25519"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// OperatorSchema is the newest version of the operator record.
const OperatorSchema = 1

// MaxOperatorName is the maximum length of an operator's name, in bytes.
const MaxOperatorName = 63

// Operator is the record of one registered operator, `cluster/operator/{tenant}.{id}.json`. Its ID is the jti of the
// nonce that it registered with, so the conditional write of the record consumes the nonce. The record of a removed
// operator stays as a tombstone at least until the nonce has expired.
type Operator struct {
	Schema int `json:"schema"`
	// Revision counts the writes of this record, so that no two versions have the same bytes.
	Revision uint64   `json:"revision"`
	ID       ident.ID `json:"id"`
	Cluster  string   `json:"cluster"`
	Tenant   string   `json:"tenant"`
	// Name is a human-readable name, such as "alice". The journal shows it. Role limits what the operator may do. An
	// empty Role means RoleOperator.
	Name string       `json:"name,omitempty"`
	Role OperatorRole `json:"role,omitempty"`
	// Writer is the incarnation of the program that wrote this version.
	Writer    string `json:"writer"`
	PublicKey []byte `json:"public_key"` // Ed25519, 32 bytes
	// PreviousKey is the key that PublicKey replaced at the last renewal. It is kept until the operator has used
	// PublicKey. An operator that presents PreviousKey can only repeat the last renewal.
	PreviousKey []byte         `json:"previous_key,omitempty"`
	Certificate CertificateRef `json:"certificate"`
	CreatedAt   time.Time      `json:"created_at"`
	RemovedAt   time.Time      `json:"removed_at,omitzero"`
	// NonceExpires is when the nonce expires. A tombstone of the operator is kept beyond that time.
	NonceExpires time.Time `json:"nonce_expires,omitzero"`
}

// OperatorRole says what an operator may do.
type OperatorRole string

const (
	// RoleViewer may read.
	RoleViewer OperatorRole = "viewer"
	// RoleOperator may read. It may also change what belongs to the operator's tenant.
	RoleOperator OperatorRole = "operator"
	// RoleAdmin may do everything that RoleOperator may, and make changes to the whole shard.
	RoleAdmin OperatorRole = "admin"
)

// OperatorRoles are the roles, from the least to the most powerful.
var OperatorRoles = []OperatorRole{RoleViewer, RoleOperator, RoleAdmin}

// Includes reports whether an operator with the role r may do everything that an operator with the other role may do.
func (r OperatorRole) Includes(other OperatorRole) bool {
	return slices.Index(OperatorRoles, cmp.Or(r, RoleOperator)) >= slices.Index(OperatorRoles, other)
}

// Removed reports whether the record is a tombstone.
func (o Operator) Removed() bool { return !o.RemovedAt.IsZero() }

// Encode checks the record and returns it as one line of JSON, with times in UTC.
func (o Operator) Encode() ([]byte, error) {
	o.PublicKey, o.PreviousKey = slices.Clone(o.PublicKey), slices.Clone(o.PreviousKey)
	utc(&o.CreatedAt, &o.RemovedAt, &o.NonceExpires, &o.Certificate.NotAfter)
	return encode(o)
}

func (Operator) kind() (string, int) { return "operator record", OperatorSchema }

// Validate returns an error that lists everything wrong with the record.
func (o Operator) Validate() error {
	var p problems
	p.check(o.Schema == OperatorSchema, "schema: is %d, want %d", o.Schema, OperatorSchema)
	p.check(o.Revision > 0, "revision: is 0")
	p.check(o.ID.Prefix() == ident.OperatorPrefix, "id: has prefix %q, want %q", o.ID.Prefix(), ident.OperatorPrefix)
	p.add("cluster", ident.ValidateClusterName(o.Cluster))
	p.add("tenant", ident.ValidateTenantName(o.Tenant))
	p.text("writer", o.Writer, maxWriter, true)
	p.text("name", o.Name, MaxOperatorName, false)
	p.check(o.Role == "" || slices.Contains(OperatorRoles, o.Role), "role: is %q", o.Role)
	p.check(len(o.PublicKey) == ed25519.PublicKeySize, "public_key: has %d bytes, want %d", len(o.PublicKey),
		ed25519.PublicKeySize)
	p.previousKey(o.PublicKey, o.PreviousKey)
	p.certificate(&o.Certificate)
	p.time("created_at", o.CreatedAt, true)
	p.time("removed_at", o.RemovedAt, false)
	p.time("nonce_expires", o.NonceExpires, false)
	return p.err("operator record " + o.ID.String())
}
