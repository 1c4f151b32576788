// Package secretsmanager is a fake of AWS Secrets Manager, at the level of its JSON API.
//
// Invariant: of a secret's versions at most one has each staging label, and one that has any version has one that is
// AWSCURRENT. A version's value never changes. All state lies under the cloud's lock: handlers are called with it held.
// Source: https://docs.aws.amazon.com/secretsmanager/latest/apireference/
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

// Service is the fake.
type Service struct {
	region, account string
	now             func() time.Time
	secrets         map[string]*secret // by name
}

// New makes a Secrets Manager with nothing in it.
func New(region, account string, now func() time.Time) *Service {
	return &Service{region: region, account: account, now: now, secrets: map[string]*secret{}}
}

// Name is the signing name.
func (s *Service) Name() string { return "secretsmanager" }

// Operations are all that this fake can do.
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
	deleted                       time.Time  // when it was put up for deletion, zero when not
	gone                          time.Time  // when that takes effect
	versions                      []*version // oldest first
	tags                          map[string]string
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9/_+=.@-]{1,512}$`)

const suffixAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// newARN has six random characters at its end, so that a secret of the same name made later is another one.
func (s *Service) newARN(name string) string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	for i := range b {
		b[i] = suffixAlphabet[int(b[i])%len(suffixAlphabet)]
	}
	return s.prefix() + name + "-" + string(b[:])
}

func (s *Service) prefix() string {
	return "arn:aws:secretsmanager:" + s.region + ":" + s.account + ":secret:"
}

// lookup finds a secret by its name, its ARN, or its ARN without the six characters. Those whose time has come are
// gone.
func (s *Service) lookup(id string) *secret {
	maps.DeleteFunc(s.secrets, func(_ string, x *secret) bool { return !x.deleted.IsZero() && !s.now().Before(x.gone) })
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

// keys are the condition keys of a secret that exists.
func (x *secret) keys(id string) policy.Context {
	ctx := policy.Context{"secretsmanager:SecretId": {id}}
	for k, v := range x.tags {
		ctx["aws:ResourceTag/"+k] = []string{v}
		ctx["secretsmanager:ResourceTag/"+k] = []string{v}
	}
	return ctx
}

// find gets a secret and asks for permission to do the call's action to it, by its own policy, too. Of one that does
// not exist AWS knows no ARN: then only who may do it to all secrets hears that there is none.
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

// live is find for operations that a secret which waits for its deletion refuses.
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

// maxTags on a secret. Source: https://docs.aws.amazon.com/secretsmanager/latest/userguide/reference_limits.html
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
