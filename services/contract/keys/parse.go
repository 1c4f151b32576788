package keys

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Kind says which document a key names.
type Kind int

// The kinds of documents, in the order of the layout table. The zero Kind is no kind.
const (
	KindClusterCA Kind = iota + 1
	KindClusterSecret
	KindClusterOperator
	KindConfig
	KindGroups
	KindFile
	KindLeader
	KindApplied
	KindInstance
	KindCertLog
	KindProbe
)

var kindNames = map[Kind]string{
	KindClusterCA:       "cluster CA",
	KindClusterSecret:   "secret",
	KindClusterOperator: "operator",
	KindConfig:          "config",
	KindGroups:          "groups",
	KindFile:            "file",
	KindLeader:          "leader",
	KindApplied:         "applied config",
	KindInstance:        "instance",
	KindCertLog:         "certificate log",
	KindProbe:           "probe",
}

func (k Kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Writer is a program that writes documents.
type Writer string

// The writers.
const (
	Provider Writer = "provider" // the Terraform provider
	Admin    Writer = "admin"    // nstance-admin, by a person with access to the bucket
	// nstance-server: the shard's leader; for the lock and the probe, any server of the shard
	Server Writer = "server"
)

// Key is a parsed bucket key. Fields that its kind does not have are zero.
type Key struct {
	Kind   Kind
	Shard  string
	Tenant string
	Name   string    // of a secret or file; the nonce of a probe
	ID     string    // of an operator or instance, in storage form
	Time   time.Time // of a certificate log entry, UTC
}

// ClusterScoped says whether the document belongs to the cluster, hence may live in another bucket than the shard's.
func (k Key) ClusterScoped() bool {
	return k.Kind == KindClusterCA || k.Kind == KindClusterSecret || k.Kind == KindClusterOperator
}

// Writers lists the programs that may write and delete the document. It is empty for a key that is not in the layout.
func (k Key) Writers() []Writer {
	switch k.Kind {
	case KindClusterCA, KindClusterSecret, KindClusterOperator:
		return []Writer{Provider, Admin, Server}
	case KindConfig, KindFile:
		return []Writer{Provider, Admin}
	case KindGroups, KindLeader, KindApplied, KindInstance, KindCertLog:
		return []Writer{Server}
	case KindProbe:
		return []Writer{Server, Provider, Admin}
	}
	return nil
}

// String builds the key again. It is empty for a zero Key.
func (k Key) String() string {
	switch k.Kind {
	case KindClusterCA:
		return ClusterCA()
	case KindClusterSecret:
		return ClusterSecret(k.Name)
	case KindClusterOperator:
		return ClusterOperator(k.Tenant, k.ID)
	case KindConfig:
		return Config(k.Shard)
	case KindGroups:
		return Groups(k.Shard)
	case KindFile:
		return File(k.Name)
	case KindLeader:
		return Leader(k.Shard)
	case KindApplied:
		return Applied(k.Shard)
	case KindInstance:
		return Instance(k.Shard, k.Tenant, k.ID)
	case KindCertLog:
		return CertLog(k.Shard, k.Tenant, k.Time, k.ID)
	case KindProbe:
		return Probe(k.Shard, k.Name)
	}
	return ""
}

// Parse reads a key relative to the bucket's prefix. It is strict: a key that no builder makes from valid parts is an
// error which says what is wrong with it.
func Parse(key string) (Key, error) {
	k, err := parse(key)
	if err != nil {
		return Key{}, fmt.Errorf("bucket key %q: %w", key, err)
	}
	return k, nil
}

var errUnknown = errors.New("not in the layout of the bucket")

func parse(key string) (Key, error) {
	top, rest, _ := strings.Cut(key, "/")
	switch top {
	case "cluster":
		return parseCluster(rest)
	case "config":
		return parseDocument(KindConfig, rest)
	case "groups":
		return parseDocument(KindGroups, rest)
	case "files":
		return Key{Kind: KindFile, Name: rest}, validateFileName(rest)
	case "shard":
		return parseShard(rest)
	}
	return Key{}, errUnknown
}

func parseCluster(rest string) (Key, error) {
	if rest == "ca.crt" {
		return Key{Kind: KindClusterCA}, nil
	}
	dir, last, _ := strings.Cut(rest, "/")
	switch dir {
	case "secret":
		return Key{Kind: KindClusterSecret, Name: last}, ValidateSecretName(last)
	case "operator":
		parts, err := splitLast(last, 2)
		if err != nil {
			return Key{}, err
		}
		k := Key{Kind: KindClusterOperator, Tenant: parts[0], ID: parts[1]}
		return k, errors.Join(validateTenant(k.Tenant), validateOperatorID(k.ID))
	}
	return Key{}, errUnknown
}

func parseDocument(kind Kind, rest string) (Key, error) {
	shard, ok := strings.CutSuffix(rest, ".jsonc")
	if !ok {
		return Key{}, errors.New("does not end in .jsonc")
	}
	return Key{Kind: kind, Shard: shard}, validateShard(shard)
}

func parseShard(rest string) (Key, error) {
	shard, rest, _ := strings.Cut(rest, "/")
	k := Key{Shard: shard}
	if err := validateShard(shard); err != nil {
		return k, err
	}
	dir, last, _ := strings.Cut(rest, "/")
	switch {
	case rest == "leader.json":
		k.Kind = KindLeader
		return k, nil
	case rest == "applied.jsonc":
		k.Kind = KindApplied
		return k, nil
	case dir == "instance":
		parts, err := splitLast(last, 2)
		if err != nil {
			return k, err
		}
		k.Kind, k.Tenant, k.ID = KindInstance, parts[0], parts[1]
		return k, errors.Join(validateTenant(k.Tenant), validateInstanceID(k.ID))
	case dir == "certlog":
		parts, err := splitLast(last, 3)
		if err != nil {
			return k, err
		}
		k.Kind, k.Tenant, k.ID = KindCertLog, parts[0], parts[2]
		k.Time, err = parseTime(parts[1])
		return k, errors.Join(validateTenant(k.Tenant), err, validateInstanceID(k.ID))
	case dir == "probe":
		k.Kind, k.Name = KindProbe, last
		if !probePattern.MatchString(last) {
			return k, errors.New("probe nonce is not 1 to 64 of [a-z0-9-]")
		}
		return k, nil
	}
	return k, errUnknown
}

// splitLast splits "a.b.json" into n parts.
func splitLast(last string, n int) ([]string, error) {
	stem, ok := strings.CutSuffix(last, ".json")
	if !ok {
		return nil, errors.New("does not end in .json")
	}
	parts := strings.Split(stem, ".")
	if len(parts) != n {
		return nil, fmt.Errorf("has %d parts between dots, want %d", len(parts), n)
	}
	return parts, nil
}

func parseTime(s string) (time.Time, error) {
	err := errors.New("timestamp is not like 20260102T150405123456789Z")
	if len(s) != len(secondsLayout)+10 || s[len(s)-1] != 'Z' {
		return time.Time{}, err
	}
	at, terr := time.ParseInLocation(secondsLayout, s[:len(secondsLayout)], time.UTC)
	nanos, nerr := strconv.ParseUint(s[len(secondsLayout):len(s)-1], 10, 32)
	if terr != nil || nerr != nil {
		return time.Time{}, err
	}
	return at.Add(time.Duration(nanos)), nil
}

var (
	secretPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	probePattern  = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
)

// ValidateSecretName says what is wrong with a secret's name: 1 to 128 characters of [A-Za-z0-9._-] with a letter or
// digit at both ends. It may not hold a slash: one secret's key is never a directory of another's.
func ValidateSecretName(name string) error {
	if len(name) > 128 {
		return fmt.Errorf("secret name is %d characters long, at most 128 are allowed", len(name))
	}
	if !secretPattern.MatchString(name) {
		return errors.New("secret name must be of [A-Za-z0-9._-] with a letter or digit at both ends")
	}
	return nil
}

// A file's name is a relative path, and must survive as a key and as a path.
func validateFileName(name string) error {
	if !utf8.ValidString(name) || len(name) > 512 {
		return errors.New("file name is not UTF-8, or is longer than 512 bytes")
	}
	for _, r := range name {
		if r < 0x20 || r == 0x7f || r == '\\' {
			return errors.New("file name holds a control character or a backslash")
		}
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." || len(segment) > 200 {
			return errors.New("file name is empty or has an empty, . or .. segment, or one longer than 200 bytes")
		}
	}
	return nil
}

func validateShard(name string) error {
	if err := ident.ValidateName(name); err != nil {
		return fmt.Errorf("shard: %w", err)
	}
	return nil
}

func validateTenant(name string) error {
	if err := ident.ValidateTenantName(name); err != nil {
		return fmt.Errorf("tenant: %w", err)
	}
	return nil
}

// Operators have an ID prefix of their own, which no instance may have.
func validateOperatorID(storage string) error {
	id, err := ident.ParseStorageID(storage)
	if err == nil && id.Prefix() != ident.OperatorPrefix {
		return fmt.Errorf("operator ID has prefix %s, want %s", id.Prefix(), ident.OperatorPrefix)
	}
	return err
}

func validateInstanceID(storage string) error {
	id, err := ident.ParseStorageID(storage)
	if err == nil && id.Prefix() == ident.OperatorPrefix {
		return fmt.Errorf("instance ID has prefix %s, which is for operators", ident.OperatorPrefix)
	}
	return err
}
