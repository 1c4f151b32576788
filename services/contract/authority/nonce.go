package authority

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Default lifetimes of nonces.
const (
	AgentNonceTTL    = 5 * time.Minute
	OperatorNonceTTL = 3 * time.Hour
)

// MaxNonce is the longest nonce in bytes.
const MaxNonce = 4096

const (
	issuer   = "nstance"
	audience = "nstance-registration"
	// nonceHeader is {"alg":"EdDSA","typ":"JWT"}. It is the only header that is written, and therefore the only one
	// that is read.
	nonceHeader = "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9."
)

// Errors of ParseNonce. A refused nonce never becomes valid later, unless the error is ErrNonceEarly.
var (
	ErrNonceMalformed = errors.New("not a registration nonce")
	ErrNonceSignature = errors.New("not signed by this cluster's nonce key")
	ErrNonceCluster   = errors.New("issued for another cluster")
	ErrNonceExpired   = errors.New("expired")
	ErrNonceEarly     = errors.New("not valid yet: a clock is wrong")
)

// Nonce is a registration nonce, a secret: any holder can register with it. It prints as redacted.
type Nonce struct {
	text func() string // a function: see envelope.Key
}

// Reveal returns the JWT. It is for userdata, or for the person who asked for the nonce.
func (n Nonce) Reveal() string {
	if n.text == nil {
		return ""
	}
	return n.text()
}

func (n Nonce) String() string { return "[registration nonce]" }

// GoString redacts.
func (n Nonce) GoString() string { return n.String() }

// LogValue redacts.
func (n Nonce) LogValue() slog.Value { return slog.StringValue(n.String()) }

// MarshalText returns the redacted form. encoding/json uses MarshalText too. The nonce cannot be read back from it.
func (n Nonce) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// NonceKey is the Ed25519 key of a cluster that signs nonces. It prints as redacted. While the cluster's keys are
// rotated, a NonceKey also contains a second public key: that of the new key or, later, of the old one. Nonces signed
// with that key are accepted too.
type NonceKey struct {
	private func() ed25519.PrivateKey
	other   ed25519.PublicKey // nil if there is none
}

// CreateNonceKey makes a key from 32 random bytes.
func CreateNonceKey(rand io.Reader) (NonceKey, error) {
	key, err := newKey(rand)
	if err != nil {
		return NonceKey{}, fmt.Errorf("create nonce key: %w", err)
	}
	return NonceKey{private: func() ed25519.PrivateKey { return key }}, nil
}

// MarshalSecret writes the key as PKCS #8 in PEM, followed by the second public key, if there is one. The result is the
// content of the secret `registration-nonce.key`. [ParseNonceKey] reads it.
func (k NonceKey) MarshalSecret() ([]byte, error) {
	if k.IsZero() {
		return nil, errors.New("marshal nonce key: there is none")
	}
	text, err := EncodePrivateKey(k.private())
	if err == nil && k.other != nil {
		var other []byte
		other, err = EncodePublicKey(k.other)
		text = append(text, other...)
	}
	if err != nil {
		return nil, fmt.Errorf("marshal nonce key: %w", err)
	}
	return text, nil
}

// ParseNonceKey reads what [NonceKey.MarshalSecret] wrote.
func ParseNonceKey(secret []byte) (NonceKey, error) {
	blocks, err := parsePEM(secret)
	if err == nil && len(blocks) > 2 {
		err = fmt.Errorf("%d PEM blocks, want one or two", len(blocks))
	}
	var key NonceKey
	if err == nil {
		key, err = parseNonceBlock(blocks[0])
	}
	if err == nil && len(blocks) == 2 {
		key.other, err = ParsePublicKeyPEM(pem.EncodeToMemory(blocks[1]))
	}
	if err != nil {
		return NonceKey{}, fmt.Errorf("parse nonce key: %w", err)
	}
	return key, nil
}

func parseNonceBlock(block *pem.Block) (NonceKey, error) {
	signer, err := parseKey(block)
	if err != nil {
		return NonceKey{}, err
	}
	key, ok := signer.(ed25519.PrivateKey)
	if !ok {
		return NonceKey{}, fmt.Errorf("it is of type %T, want Ed25519", signer)
	}
	return NonceKey{private: func() ed25519.PrivateKey { return key }}, nil
}

// Accepting returns a copy of the key k that accepts nonces of k and of the key "other". If "other" is zero, the copy
// accepts only nonces of k.
func (k NonceKey) Accepting(other NonceKey) NonceKey { return NonceKey{k.private, other.Public()} }

// Accepted returns the public keys with which [ParseNonce] verifies nonces: that of k, and the second public key, if
// there is one. It returns none for a zero NonceKey.
func (k NonceKey) Accepted() []ed25519.PublicKey {
	switch {
	case k.IsZero():
		return nil
	case k.other == nil:
		return []ed25519.PublicKey{k.Public()}
	}
	return []ed25519.PublicKey{k.Public(), k.other}
}

// IsZero reports whether there is no key.
func (k NonceKey) IsZero() bool { return k.private == nil }

// Public returns the public key, or nil if there is no key.
func (k NonceKey) Public() ed25519.PublicKey {
	if k.IsZero() {
		return nil
	}
	return k.private().Public().(ed25519.PublicKey)
}

func (k NonceKey) String() string { return "[nonce key]" }

// GoString redacts.
func (k NonceKey) GoString() string { return k.String() }

// LogValue redacts.
func (k NonceKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText returns the redacted form. encoding/json uses MarshalText too. The key cannot be read back from it.
func (k NonceKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// NonceSpec asks for a nonce.
type NonceSpec struct {
	Role    Role // RoleAgent or RoleOperator
	Cluster string
	Tenant  string
	// ID is the ID of the instance or of the operator. It is required for an instance. If it is zero for an operator,
	// the operator gets a new ID.
	ID ident.ID
	// Batch takes the place of ID in the nonce that all VMs of a batch get. Each of them can register with it once.
	Batch ident.Batch
	// Shard, Group and ConfigHash are those of the instance. They are empty for operators, which can register with any
	// shard.
	Shard, Group, ConfigHash string
	OnDemand                 bool
	// OperatorRole is what an operator may do. If it is empty, the operator gets record.RoleOperator. It is empty for
	// instances.
	OperatorRole record.OperatorRole
	TTL          time.Duration // 0: AgentNonceTTL or OperatorNonceTTL
}

// NonceClaims are the contents of a nonce. None of them is secret.
type NonceClaims struct {
	Role                     Role
	Cluster, Tenant          string
	ID                       ident.ID // of the instance or operator; zero: the nonce is for the instances of Batch
	Batch                    ident.Batch
	Shard, Group, ConfigHash string
	OnDemand                 bool
	OperatorRole             record.OperatorRole // "": the default
	// JTI identifies the nonce. It is random for agents, and the operator's ID for operators.
	JTI string
	// The times are whole seconds in UTC. The nonce is valid from NotBefore on, and becomes invalid at ExpiresAt.
	IssuedAt, NotBefore, ExpiresAt time.Time
}

// wireClaims is the JWT's payload.
type wireClaims struct {
	jwt.RegisteredClaims
	Kind       Role   `json:"kind"`
	ClusterID  string `json:"cluster_id"`
	Tenant     string `json:"tenant"`
	Shard      string `json:"shard,omitempty"`
	Group      string `json:"group,omitempty"`
	ConfigHash string `json:"config_hash,omitempty"`
	OnDemand   bool   `json:"on_demand"`
	// Servers of versions without this claim refuse a nonce that has it.
	OperatorRole record.OperatorRole `json:"operator_role,omitempty"`
}

// UnmarshalJSON refuses unknown claims.
func (w *wireClaims) UnmarshalJSON(data []byte) error {
	type plain wireClaims
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode((*plain)(w))
}

// MintNonce makes and signs a nonce. The nonce is valid from [Skew] before now until the specification's TTL after now.
// At most 16 bytes are read from rand.
func MintNonce(key NonceKey, spec NonceSpec, rand io.Reader, now time.Time) (Nonce, NonceClaims, error) {
	claims, err := spec.claims(rand, now)
	if err != nil {
		return Nonce{}, NonceClaims{}, fmt.Errorf("mint nonce: %w", err)
	}
	if key.IsZero() {
		return Nonce{}, NonceClaims{}, errors.New("mint nonce: there is no nonce key")
	}
	text, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims.wire()).SignedString(key.private())
	if err != nil {
		return Nonce{}, NonceClaims{}, fmt.Errorf("mint nonce: %w", err)
	}
	return Nonce{func() string { return text }}, claims, nil
}

func (spec NonceSpec) claims(rand io.Reader, now time.Time) (NonceClaims, error) {
	now = now.UTC().Truncate(time.Second)
	c := NonceClaims{
		Role: spec.Role, Cluster: spec.Cluster, Tenant: spec.Tenant, ID: spec.ID, Batch: spec.Batch,
		Shard: spec.Shard, Group: spec.Group, ConfigHash: spec.ConfigHash, OnDemand: spec.OnDemand,
		OperatorRole: spec.OperatorRole,
		IssuedAt:     now, NotBefore: now.Add(-Skew),
	}
	switch spec.Role {
	case RoleAgent:
		var random [16]byte
		if _, err := io.ReadFull(rand, random[:]); err != nil {
			return c, fmt.Errorf("read random bytes: %w", err)
		}
		c.JTI = hex.EncodeToString(random[:])
	case RoleOperator:
		if c.OperatorRole == record.RoleOperator {
			c.OperatorRole = "" // the default, which servers of every version know
		}
		if c.ID.IsZero() {
			id, err := ident.NewID(ident.OperatorPrefix, now, rand)
			if err != nil {
				return c, err
			}
			c.ID = id
		}
		c.JTI = c.ID.String()
	}
	ttl := cmp.Or(spec.TTL, map[Role]time.Duration{RoleAgent: AgentNonceTTL, RoleOperator: OperatorNonceTTL}[spec.Role])
	if ttl < time.Second {
		return c, fmt.Errorf("ttl %s is too short", ttl)
	}
	c.ExpiresAt = now.Add(ttl).Truncate(time.Second)
	return c, c.validate()
}

// validate checks claims before they are signed and after their signature was verified.
func (c NonceClaims) validate() error {
	id := c.ID
	if c.Role == RoleAgent && id.IsZero() {
		id = c.Batch.First()
	} else if !c.Batch.IsZero() {
		return errors.New("only an instance's nonce can be for a batch, and then it has no ID")
	}
	if err := (Identity{Role: c.Role, Cluster: c.Cluster, Tenant: c.Tenant, ID: id}).Validate(); err != nil {
		return err
	}
	switch c.Role {
	case RoleAgent:
		if c.OperatorRole != "" {
			return errors.New("an instance's nonce has a role of operators")
		}
		if err := ident.ValidateName(c.Shard); err != nil {
			return fmt.Errorf("shard: %w", err)
		}
		if err := ident.ValidateName(c.Group); err != nil {
			return fmt.Errorf("group: %w", err)
		}
		if len(c.JTI) != 32 || strings.Trim(c.JTI, "0123456789abcdef") != "" {
			return errors.New("jti: want 32 hexadecimal characters")
		}
	case RoleOperator:
		if c.Shard != "" || c.Group != "" || c.ConfigHash != "" || c.OnDemand {
			return errors.New("an operator's nonce names a shard or group")
		}
		if c.OperatorRole != "" && !slices.Contains(record.OperatorRoles, c.OperatorRole) {
			return errors.New("the role is not viewer, operator or admin")
		}
	default:
		return fmt.Errorf("role %q cannot register", c.Role)
	}
	if len(c.ConfigHash) > 128 || !c.ExpiresAt.After(c.NotBefore) {
		return errors.New("config_hash is too long, or the times are in the wrong order")
	}
	return nil
}

func (c NonceClaims) wire() *wireClaims {
	subject := c.ID.String() + c.Batch.String() // one of them is zero
	if c.Role == RoleOperator {
		subject = c.Cluster
	}
	return &wireClaims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: issuer, Audience: jwt.ClaimStrings{audience}, Subject: subject, ID: c.JTI,
			IssuedAt: jwt.NewNumericDate(c.IssuedAt), NotBefore: jwt.NewNumericDate(c.NotBefore),
			ExpiresAt: jwt.NewNumericDate(c.ExpiresAt),
		},
		Kind: c.Role, ClusterID: c.Cluster, Tenant: c.Tenant, Shard: c.Shard, Group: c.Group, ConfigHash: c.ConfigHash,
		OnDemand: c.OnDemand, OperatorRole: c.OperatorRole,
	}
}

func (w *wireClaims) claims() (NonceClaims, error) {
	c := NonceClaims{
		Role: w.Kind, Cluster: w.ClusterID, Tenant: w.Tenant, Shard: w.Shard, Group: w.Group, ConfigHash: w.ConfigHash,
		OnDemand: w.OnDemand, OperatorRole: w.OperatorRole,
		JTI: w.ID, IssuedAt: w.IssuedAt.UTC(), NotBefore: w.NotBefore.UTC(), ExpiresAt: w.ExpiresAt.UTC(),
	}
	text := w.Subject
	if w.Kind == RoleOperator {
		if w.Subject != w.ClusterID {
			return NonceClaims{}, errors.New("sub is not the cluster")
		}
		text = w.ID
	}
	var err error
	if c.Batch, err = ident.ParseBatch(text); err != nil {
		if c.ID, err = ident.ParseID(text); err != nil {
			return NonceClaims{}, err
		}
	}
	return c, c.validate()
}

// ParseNonce verifies a presented nonce with any of the keys and returns its claims. With allowExpired it also accepts
// an expired nonce. The caller must then refuse the registration, unless an earlier registration with the agent's key
// has consumed the nonce. Errors never quote the nonce.
func ParseNonce(keys []ed25519.PublicKey, cluster, text string, now time.Time, allowExpired bool) (NonceClaims, error) {
	claims, err := parseNonce(keys, cluster, text, now, allowExpired)
	if err != nil {
		return NonceClaims{}, fmt.Errorf("registration nonce: %w", err)
	}
	return claims, nil
}

func parseNonce(keys []ed25519.PublicKey, cluster, text string, now time.Time, allowExpired bool) (NonceClaims, error) {
	switch {
	case len(keys) == 0:
		return NonceClaims{}, errors.New("there is no nonce key")
	case len(text) > MaxNonce:
		return NonceClaims{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrNonceMalformed, len(text), MaxNonce)
	case strings.ContainsAny(text, "\r\n"): // which Go's base64 skips
		return NonceClaims{}, fmt.Errorf("%w: it holds line breaks", ErrNonceMalformed)
	case !strings.HasPrefix(text, nonceHeader):
		return NonceClaims{}, fmt.Errorf("%w: its header is not that of a JWT signed with EdDSA", ErrNonceMalformed)
	}
	var wire wireClaims
	var set jwt.VerificationKeySet
	for _, key := range keys {
		set.Keys = append(set.Keys, key)
	}
	parser := jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithStrictDecoding(),
		jwt.WithoutClaimsValidation())
	_, err := parser.ParseWithClaims(text, &wire, func(*jwt.Token) (any, error) { return set, nil })
	switch {
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return NonceClaims{}, ErrNonceSignature
	case err != nil: // the library's words may quote it
		return NonceClaims{}, fmt.Errorf("%w: it does not decode, or has unknown claims", ErrNonceMalformed)
	case wire.ExpiresAt == nil || wire.NotBefore == nil || wire.IssuedAt == nil:
		return NonceClaims{}, fmt.Errorf("%w: exp, nbf and iat are required", ErrNonceMalformed)
	}
	claims, err := wire.claims()
	if err != nil {
		return NonceClaims{}, fmt.Errorf("%w: %w", ErrNonceMalformed, err)
	}
	if claims.Cluster != cluster {
		return NonceClaims{}, fmt.Errorf("%w: %s", ErrNonceCluster, claims.Cluster)
	}
	if allowExpired && !now.Before(claims.ExpiresAt) {
		now = claims.ExpiresAt.Add(-time.Second)
	}
	validator := jwt.NewValidator(jwt.WithIssuer(issuer), jwt.WithAllAudiences(audience), jwt.WithExpirationRequired(),
		jwt.WithTimeFunc(func() time.Time {
			return now
		}))
	switch err := validator.Validate(&wire); {
	case err == nil && len(wire.Audience) == 1:
		return claims, nil
	case errors.Is(err, jwt.ErrTokenInvalidIssuer), errors.Is(err, jwt.ErrTokenInvalidAudience), err == nil:
		return NonceClaims{}, fmt.Errorf("%w: issuer or audience is another", ErrNonceMalformed)
	case errors.Is(err, jwt.ErrTokenExpired):
		return NonceClaims{}, fmt.Errorf("%w at %s", ErrNonceExpired, claims.ExpiresAt.Format(time.RFC3339))
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return NonceClaims{}, fmt.Errorf("%w: valid from %s", ErrNonceEarly, claims.NotBefore.Format(time.RFC3339))
	default:
		return NonceClaims{}, fmt.Errorf("%w: %w", ErrNonceMalformed, err)
	}
}
