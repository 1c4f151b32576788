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

// Kind is the kind of document that a key names. The zero Kind is no kind.
type Kind string

// The kinds of documents.
const (
	KindClusterCA       Kind = "cluster CA"
	KindClusterSecret   Kind = "secret"
	KindClusterOperator Kind = "operator"
	KindAgentKey        Kind = "agent key"
	KindClusterJournal  Kind = "cluster journal"
	KindConfig          Kind = "config"
	KindGroups          Kind = "groups"
	KindFile            Kind = "file"
	KindLeader          Kind = "leader"
	KindApplied         Kind = "applied config"
	KindServerReport    Kind = "server report"
	KindHome            Kind = "home"
	KindRollout         Kind = "rollout"
	KindInstance        Kind = "instance"
	KindCertLog         Kind = "certificate log"
	KindJournal         Kind = "journal"
	KindProbe           Kind = "probe"
)

// Key is a parsed bucket key. Fields that its kind does not have are zero.
type Key struct {
	Kind   Kind
	Shard  string
	Tenant string
	// Name is that of a secret, file or group, an agent's public key in hexadecimal, or the nonce of a probe or journal
	// entry.
	Name string
	ID   string    // of an operator or instance, in storage form
	Time time.Time // of an entry of the certificate log or the cluster journal; the day of a part of the journal; UTC
	// Term and First are the term and the first sequence number of a part of the journal.
	Term, First uint64
}

// layout has one entry for each kind of key. Each named group of a pattern matches one part of the key. [Key.set] then
// checks that part.
var layout = []struct {
	kind    Kind
	pattern *regexp.Regexp
}{
	{KindClusterCA, regexp.MustCompile(`^cluster/ca\.crt$`)},
	{KindClusterSecret, regexp.MustCompile(`^cluster/secret/(?<secret>.*)$`)},
	{KindClusterOperator, regexp.MustCompile(`^cluster/operator/(?<tenant>[^./]*)\.(?<operator>[^./]*)\.json$`)},
	{KindAgentKey, regexp.MustCompile(`^cluster/key/(?<public>[0-9a-f]{64})\.json$`)},
	{KindClusterJournal, regexp.MustCompile(
		`^cluster/journal/(?<time>[0-9]{8}T[0-9]{15}Z)\.(?<probe>[a-z0-9-]{1,64})\.json$`)},
	{KindConfig, regexp.MustCompile(`^config/(?<shard>[^/]*)\.jsonc$`)},
	{KindGroups, regexp.MustCompile(`^groups/(?<shard>[^/]*)\.jsonc$`)},
	{KindFile, regexp.MustCompile(`^files/(?<file>.*)$`)},
	{KindLeader, regexp.MustCompile(`^shard/(?<shard>[^/]*)/leader\.json$`)},
	{KindApplied, regexp.MustCompile(`^shard/(?<shard>[^/]*)/applied\.jsonc$`)},
	{KindHome, regexp.MustCompile(`^shard/(?<shard>[^/]*)/home\.json$`)},
	{KindServerReport, regexp.MustCompile(`^shard/(?<shard>[^/]*)/server-report\.json$`)},
	{KindRollout, regexp.MustCompile(
		`^shard/(?<shard>[^/]*)/rollout/(?<tenant>[^./]*)\.(?<group>[^./]*)\.json$`)},
	{KindInstance, regexp.MustCompile(
		`^shard/(?<shard>[^/]*)/instance/(?<tenant>[^./]*)\.(?<instance>[^./]*)\.json$`)},
	{KindCertLog, regexp.MustCompile(
		`^shard/(?<shard>[^/]*)/certlog/(?<tenant>[^./]*)\.(?<time>[0-9]{8}T[0-9]{15}Z)\.(?<instance>[^./]*)\.json$`)},
	{KindJournal, regexp.MustCompile(
		`^shard/(?<shard>[^/]*)/journal/(?<day>[0-9]{4}-[0-9]{2}-[0-9]{2})/` +
			`(?<term>[1-9][0-9]*)-(?<first>[1-9][0-9]*)\.jsonl$`)},
	{KindProbe, regexp.MustCompile(`^shard/(?<shard>[^/]*)/probe/(?<probe>[a-z0-9-]{1,64})$`)},
}

// Parse reads a key relative to the bucket's prefix. It is strict: it accepts only a key that a builder makes from
// valid parts. The error for any other key says what is wrong with the key.
func Parse(key string) (Key, error) {
	for _, entry := range layout {
		parts := entry.pattern.FindStringSubmatch(key)
		if parts == nil {
			continue
		}
		k := Key{Kind: entry.kind}
		for i, name := range entry.pattern.SubexpNames()[1:] {
			if err := k.set(name, parts[i+1]); err != nil {
				return Key{}, fmt.Errorf("bucket key %q: %s: %w", key, name, err)
			}
		}
		return k, nil
	}
	return Key{}, fmt.Errorf("bucket key %q: not in the layout of the bucket", key)
}

// set checks one part of a key and stores it in a field of k. The parameter name is the name of the part.
func (k *Key) set(name, text string) (err error) {
	switch name {
	case "shard":
		k.Shard, err = text, ident.ValidateName(text)
	case "tenant":
		k.Tenant, err = text, ident.ValidateTenantName(text)
	case "secret":
		k.Name, err = text, ValidateSecretName(text)
	case "group":
		k.Name, err = text, ident.ValidateName(text)
	case "file":
		k.Name, err = text, validateFileName(text)
	case "probe", "public":
		k.Name = text
	case "time":
		seconds, nanoseconds := text[:len(secondsLayout)], text[len(secondsLayout):]
		k.Time, err = time.Parse(timeLayout, seconds+"."+nanoseconds)
	case "day":
		k.Time, err = time.Parse(time.DateOnly, text)
	case "term":
		k.Term, err = strconv.ParseUint(text, 10, 64)
	case "first":
		k.First, err = strconv.ParseUint(text, 10, 64)
	case "operator", "instance":
		var id ident.ID
		k.ID = text
		id, err = ident.ParseStorageID(text)
		// Operators have an ID prefix of their own, which no instance may have.
		if err == nil && (id.Prefix() == ident.OperatorPrefix) != (name == "operator") {
			err = fmt.Errorf("the prefix %s is not that of an %s", id.Prefix(), name)
		}
	}
	return err
}

var secretPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// ValidateSecretName returns an error that says what is wrong with a secret's name. A valid name has 1 to 128
// characters of [A-Za-z0-9._-], with a letter or digit at both ends. It cannot contain a slash, so no secret's key is a
// directory of another secret's key.
func ValidateSecretName(name string) error {
	if len(name) > 128 {
		return fmt.Errorf("secret name is %d characters long, at most 128 are allowed", len(name))
	}
	if !secretPattern.MatchString(name) {
		return errors.New("secret name must be of [A-Za-z0-9._-] with a letter or digit at both ends")
	}
	return nil
}

// A file's name must be valid both in a key of the bucket and as a relative path.
func validateFileName(name string) error {
	if !utf8.ValidString(name) || len(name) > 512 {
		return errors.New("name is not UTF-8, or is longer than 512 bytes")
	}
	for _, r := range name {
		if r < 0x20 || r == 0x7f || r == '\\' {
			return errors.New("name holds a control character or a backslash")
		}
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." || len(segment) > 200 {
			return errors.New("name is empty or has an empty, . or .. segment, or one longer than 200 bytes")
		}
	}
	return nil
}
