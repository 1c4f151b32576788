// Package secretsmanager fakes AWS Secrets Manager, at the level of its JSON API.
//
// Invariant: at most one version of a secret has a given staging label. If a secret has versions, one of them has the
// label AWSCURRENT. A version's value never changes.
//
// The cloud's lock guards all state. Handlers are called with it held.
//
// https://docs.aws.amazon.com/secretsmanager/latest/apireference/
package secretsmanager

import (
	"crypto/rand"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Service is the fake. The caller must hold the cloud's lock.
type Service struct {
	region, account string
	now             func() time.Time
	secrets         map[string]*secret // by name
}

// New returns an empty Secrets Manager.
func New(region, account string, now func() time.Time) *Service {
	return &Service{region: region, account: account, now: now, secrets: map[string]*secret{}}
}

// Name returns the service's name in the credential scope of a signature.
func (s *Service) Name() string { return "secretsmanager" }

// Operations implements wire.Service.
func (s *Service) Operations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateSecret":      s.createSecret,
		"DescribeSecret":    s.describeSecret,
		"ListSecrets":       s.listSecrets,
		"DeleteSecret":      s.deleteSecret,
		"GetSecretValue":    s.getSecretValue,
		"PutSecretValue":    s.putSecretValue,
		"GetResourcePolicy": s.getPolicy,
	}
}

type secret struct {
	name, arn, description, keyID string
	created, changed              time.Time
	deleted                       time.Time  // Time of DeleteSecret; zero without.
	endsAt                        time.Time  // Time at which the deletion takes effect.
	versions                      []*version // oldest first
	tags                          map[string]string
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9/_+=.@-]{1,512}$`)

const suffixAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// newARN returns an ARN with six random characters at its end. They distinguish a secret from a later one of the same
// name.
func (s *Service) newARN(name string) string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // Never fails.
	for i := range b {
		b[i] = suffixAlphabet[int(b[i])%len(suffixAlphabet)]
	}
	return s.prefix() + name + "-" + string(b[:])
}

func (s *Service) prefix() string {
	return "arn:aws:secretsmanager:" + s.region + ":" + s.account + ":secret:"
}

// lookup returns a secret by its name, its ARN, or its ARN without the six random characters. It first removes the
// secrets whose recovery window has ended.
func (s *Service) lookup(id string) *secret {
	maps.DeleteFunc(s.secrets, func(_ string, x *secret) bool {
		return !x.deleted.IsZero() && !s.now().Before(x.endsAt)
	})
	name, isARN := strings.CutPrefix(id, s.prefix())
	if x := s.secrets[name]; x != nil {
		return x
	}
	if isARN && len(name) > 7 {
		if x := s.secrets[name[:len(name)-7]]; x != nil && x.arn == id {
			return x
		}
	}
	return nil
}

// keys returns the IAM condition keys of an existing secret.
func (x *secret) keys(id string) policy.Context {
	ctx := policy.Context{"secretsmanager:SecretId": {id}}
	for k, v := range x.tags {
		ctx["aws:ResourceTag/"+k] = []string{v}
		ctx["secretsmanager:ResourceTag/"+k] = []string{v}
	}
	return ctx
}

// find returns a secret if the caller may perform the call's action on it. A secret that does not exist has no ARN, so
// the permission check uses the given ID. Only a caller with permission for all secrets learns that the secret does not
// exist.
func (s *Service) find(c *wire.Call, id string, keys ...policy.Context) (*secret, error) {
	x := s.lookup(id)
	resource, all := id, policy.Context{"secretsmanager:SecretId": {id}}
	if x != nil {
		resource, all = x.arn, x.keys(id)
	}
	for _, k := range keys {
		maps.Copy(all, k)
	}
	if err := c.Authorize("secretsmanager:"+c.Action, resource, all); err != nil {
		return nil, err
	}
	if x == nil {
		return nil, fail("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
	}
	return x, nil
}

// live is like find, but returns an error for a secret that is marked for deletion.
func (s *Service) live(c *wire.Call, id string, keys ...policy.Context) (*secret, error) {
	x, err := s.find(c, id, keys...)
	if err == nil && !x.deleted.IsZero() {
		return nil,
			fail("InvalidRequestException",
				"You can't perform this operation on the secret because it was marked for deletion.")
	}
	return x, err
}

type tag struct{ Key, Value string }

func tagKeys(tags []tag) policy.Context {
	ctx := policy.Context{}
	for _, t := range tags {
		ctx["aws:RequestTag/"+t.Key] = []string{t.Value}
		ctx["aws:TagKeys"] = append(ctx["aws:TagKeys"], t.Key)
	}
	return ctx
}

// maxTags is the maximum number of tags on a secret.
// https://docs.aws.amazon.com/secretsmanager/latest/userguide/reference_limits.html
const maxTags = 50

func (x *secret) tag(tags []tag) error {
	all := maps.Clone(x.tags)
	for _, t := range tags {
		if t.Key == "" || len(t.Key) > 128 || len(t.Value) > 256 || strings.HasPrefix(t.Key, "aws:") {
			return fail("InvalidParameterException", "The tag %q is not valid", t.Key)
		}
		all[t.Key] = t.Value
	}
	if len(all) > maxTags {
		return fail("InvalidParameterException", "A secret can have at most %d tags", maxTags)
	}
	x.tags = all
	return nil
}

func (x *secret) tagList() []tag {
	out := []tag{}
	for _, k := range slices.Sorted(maps.Keys(x.tags)) {
		out = append(out, tag{k, x.tags[k]})
	}
	return out
}

// getPolicy answers that the secret has no resource policy.
func (s *Service) getPolicy(c *wire.Call) (any, error) {
	var in struct{ SecretId string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	x, err := s.live(c, in.SecretId)
	if err != nil {
		return nil, err
	}
	return struct{ ARN, Name string }{x.arn, x.name}, nil
}

func fail(code, format string, args ...any) error {
	return wire.Errorf(http.StatusBadRequest, code, format, args...)
}
