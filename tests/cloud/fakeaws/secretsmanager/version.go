package secretsmanager

import (
	"bytes"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

const (
	current  = "AWSCURRENT"
	previous = "AWSPREVIOUS"
	maxValue = 65536 // bytes
)

// version is one value of a secret. Its ID is the token of the client's request.
type version struct {
	id      string
	value   value
	created time.Time
	labels  []string
}

// value is either a text or bytes.
type value struct {
	SecretString *string
	SecretBinary []byte
}

func (v value) empty() bool { return v.SecretString == nil && v.SecretBinary == nil }

func (v value) equal(o value) bool {
	if v.SecretString != nil && o.SecretString != nil {
		return *v.SecretString == *o.SecretString
	}
	return v.SecretString == nil && o.SecretString == nil && bytes.Equal(v.SecretBinary, o.SecretBinary)
}

func (v value) check() error {
	switch {
	case v.SecretString != nil && v.SecretBinary != nil:
		return fail("InvalidParameterException",
			"You can't specify both a binary secret value and a string secret value in the same secret.")
	case v.SecretString != nil && len(*v.SecretString) > maxValue || len(v.SecretBinary) > maxValue:
		return fail("ValidationException",
			"1 validation error detected: Value at 'secretString' failed to satisfy constraint: Member must have "+
				"length less than or equal to %d", maxValue)
	}
	return nil
}

// labelled returns the version that has a label, or nil.
func (x *secret) labelled(label string) *version {
	i := slices.IndexFunc(x.versions, func(v *version) bool { return slices.Contains(v.labels, label) })
	if i < 0 {
		return nil
	}
	return x.versions[i]
}

func (x *secret) version(id string) *version {
	i := slices.IndexFunc(x.versions, func(v *version) bool { return v.id == id })
	if i < 0 {
		return nil
	}
	return x.versions[i]
}

// move moves a staging label to a version. If the label is AWSCURRENT, the version that had it before gets the label
// AWSPREVIOUS.
func (x *secret) move(label string, to *version) {
	from := x.labelled(label)
	if from != nil {
		from.labels = slices.DeleteFunc(from.labels, func(l string) bool { return l == label })
	}
	to.labels = append(to.labels, label)
	if label == current && from != nil {
		x.move(previous, from)
	}
}

// put adds a version whose ID is the token. If a version with this ID and the same value exists, put succeeds and
// changes nothing.
// https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_PutSecretValue.html
func (x *secret) put(c *wire.Call, token string, v value, labels []string) (*version, error) {
	if err := v.check(); err != nil {
		return nil, err
	}
	if token == "" || len(token) > 64 {
		return nil,
			fail("InvalidRequestException",
				"You must provide a ClientRequestToken value. We recommend a UUID-type value.")
	}
	if old := x.version(token); old != nil {
		if !old.value.equal(v) {
			return nil,
				fail("ResourceExistsException",
					"A resource with the ID you requested already exists: version %s of %s.", token, x.name)
		}
		return old, nil
	}
	if len(labels) == 0 || len(x.versions) == 0 {
		labels = append(labels, current)
	}
	added := &version{id: token, value: v, created: c.Now}
	x.versions, x.changed = append(x.versions, added), c.Now
	for _, label := range labels {
		x.move(label, added)
	}
	return added, nil
}

type versionOut struct {
	ARN, Name     string
	VersionId     string   `json:",omitempty"`
	VersionStages []string `json:",omitempty"`
}

func (s *Service) putSecretValue(c *wire.Call) (any, error) {
	var in struct {
		SecretId, ClientRequestToken string
		VersionStages                []string
		value
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	x, err := s.live(c, in.SecretId)
	if err != nil {
		return nil, err
	}
	if in.empty() {
		return nil, fail("InvalidRequestException", "You must provide either SecretString or SecretBinary.")
	}
	v, err := x.put(c, in.ClientRequestToken, in.value, in.VersionStages)
	if err != nil {
		return nil, err
	}
	return versionOut{x.arn, x.name, v.id, v.labels}, nil
}

func (s *Service) getSecretValue(c *wire.Call) (any, error) {
	var in struct{ SecretId, VersionId, VersionStage string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	label := in.VersionStage
	if label == "" && in.VersionId == "" {
		label = current
	}
	keys := policy.Context{}
	if label != "" {
		keys["secretsmanager:VersionStage"] = []string{label}
	}
	if in.VersionId != "" {
		keys["secretsmanager:VersionId"] = []string{in.VersionId}
	}
	x, err := s.live(c, in.SecretId, keys)
	if err != nil {
		return nil, err
	}
	v := x.version(in.VersionId)
	if in.VersionId == "" {
		v = x.labelled(label)
	}
	switch {
	case v == nil && label != "":
		return nil,
			fail("ResourceNotFoundException",
				"Secrets Manager can't find the specified secret value for staging label: %s", label)
	case v == nil:
		return nil,
			fail("ResourceNotFoundException", "Secrets Manager can't find the specified secret value for VersionId: %s",
				in.VersionId)
	case label != "" && !slices.Contains(v.labels, label):
		return nil,
			fail("InvalidRequestException",
				"You provided a VersionStage that is not associated to the provided VersionId.")
	}
	return struct {
		versionOut
		SecretString *string `json:",omitempty"`
		SecretBinary []byte  `json:",omitempty"`
		CreatedDate  wire.Time
	}{versionOut{x.arn, x.name, v.id, v.labels}, v.value.SecretString, v.value.SecretBinary,
		wire.Time{Time: v.created}}, nil
}
