package ssm

import (
	"cmp"
	"maps"
	"regexp"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Limits. https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
const (
	maxStandard = 4096 // bytes
	maxAdvanced = 8192
	maxVersions = 100
	maxLevels   = 15
)

const (
	standard    = "Standard"
	advanced    = "Advanced"
	intelligent = "Intelligent-Tiering"
	secure      = "SecureString"
)

var nameForm = regexp.MustCompile(`^[a-zA-Z0-9_.\-/]+$`)

// checkName checks the rules for names.
// https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-su-create.html
func checkName(name string) error {
	first := strings.ToLower(strings.TrimPrefix(name, "/"))
	switch {
	case !nameForm.MatchString(name) || len(name) > 1011 || strings.Contains(name, "//") ||
		strings.HasSuffix(name, "/"):
		return fail("ValidationException",
			"Parameter name: can't be empty, and only a mix of letters, numbers and the symbols .-_/ is allowed")
	case strings.Contains(name, "/") && !strings.HasPrefix(name, "/"):
		return fail("ValidationException", "Parameter name must be a fully qualified name.")
	case strings.HasPrefix(first, "aws") || strings.HasPrefix(first, "ssm"):
		return fail("ValidationException",
			"Parameter name: can't be prefixed with \"aws\" or \"ssm\" (case-insensitive).")
	case strings.Count(name, "/") > maxLevels:
		return fail("HierarchyLevelLimitExceededException", "A hierarchy can have at most %d levels", maxLevels)
	}
	return nil
}

type putInput struct {
	Name, Value, Type, Tier, KeyId, DataType, Policies string
	Description, AllowedPattern                        *string
	Overwrite                                          bool
	Tags                                               []tag
}

func (s *Service) putParameter(c *wire.Call) (any, error) {
	var in putInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowPut(c, &in); err != nil {
		return nil, err
	}
	old := s.parameters[in.Name]
	p, err := in.next(old)
	if err != nil {
		return nil, err
	}
	p.versions = append(p.versions, version{value: in.Value, at: c.Now, by: c.Principal.ARN})
	if len(p.versions) > maxVersions {
		p.versions, p.first = p.versions[1:], p.first+1
	}
	s.parameters[in.Name] = p
	return struct {
		Tier    string
		Version int64
	}{p.tier, p.number()}, nil
}

func (s *Service) allowPut(c *wire.Call, in *putInput) error {
	keys := policy.Context{"ssm:Overwrite": {strconv.FormatBool(in.Overwrite)}}
	maps.Copy(keys, tagKeys(in.Tags))
	if err := s.allow(c, in.Name, keys); err != nil || len(in.Tags) == 0 {
		return err
	}
	return c.Authorize("ssm:AddTagsToResource", s.arn(in.Name), keys)
}

// next returns the parameter with the requested settings, but without the new value. The caller of next adds the value
// as a version. old is nil for a new parameter.
func (in *putInput) next(old *parameter) (*parameter, error) {
	if err := checkName(in.Name); err != nil {
		return nil, err
	}
	p := &parameter{name: in.Name, kind: in.Type, tier: standard, dataType: "text", first: 1, tags: map[string]string{}}
	if old != nil {
		if !in.Overwrite {
			return nil,
				fail("ParameterAlreadyExists",
					"The parameter already exists. To overwrite this value, set the overwrite option in the request "+
						"to true.")
		}
		if in.Type != "" && in.Type != old.kind {
			return nil,
				fail("HierarchyTypeMismatchException",
					"Parameter Store does not support changing a parameter's type: %s is a %s", in.Name, old.kind)
		}
		*p = *old
	}
	if len(in.Tags) > 0 && in.Overwrite {
		return nil,
			fail("ValidationException",
				"Invalid request: tags and overwrite can't be used together. To create a parameter with tags, "+
					"please remove overwrite flag.")
	}
	if p.kind != "String" && p.kind != "StringList" && p.kind != secure {
		return nil, fail("ValidationException", "A parameter type is required when you create a parameter.")
	}
	if in.Policies != "" || in.DataType != "" && in.DataType != "text" {
		return nil, fail("UnsupportedParameterType", "Policies and data types are not known here")
	}
	if err := in.describe(p); err != nil {
		return nil, err
	}
	return p, p.tag(in.Tags)
}

// describe copies the requested settings to p. It keeps settings that the request does not contain.
func (in *putInput) describe(p *parameter) error {
	if in.Description != nil {
		p.description = *in.Description
	}
	if in.AllowedPattern != nil {
		p.allowedPattern = *in.AllowedPattern
	}
	if p.kind == secure {
		p.keyID = cmp.Or(in.KeyId, p.keyID, "alias/aws/ssm")
	} else if in.KeyId != "" {
		return fail("ValidationException", "KeyId is only for parameters of the type SecureString")
	}
	pattern, err := regexp.Compile(p.allowedPattern)
	if err != nil {
		return fail("InvalidAllowedPatternException", "The pattern is not a regular expression: %v", err)
	}
	if !pattern.MatchString(in.Value) {
		return fail("ParameterPatternMismatchException",
			"Parameter value, cannot be validated against allowedPattern: %s", p.allowedPattern)
	}
	return in.setTier(p)
}

func (in *putInput) setTier(p *parameter) error {
	size := len(in.Value)
	switch {
	case size == 0:
		return fail("ValidationException",
			"1 validation error detected: Value '' at 'value' failed to satisfy constraint: Member must have length "+
				"greater than or equal to 1")
	case in.Tier == intelligent && size > maxStandard, in.Tier == advanced, in.Tier == "" && p.tier == advanced,
		in.Tier == intelligent && p.tier == advanced:
		p.tier = advanced
	case in.Tier == standard && p.tier == advanced:
		return fail("ValidationException",
			"This parameter uses the advanced-parameter tier. You can't downgrade a parameter from the "+
				"advanced-parameter tier to the standard-parameter tier.")
	case in.Tier != "" && in.Tier != standard && in.Tier != intelligent:
		return fail("ValidationException", "The tier %q is not known", in.Tier)
	}
	if p.tier == standard && size > maxStandard {
		return fail("ValidationException",
			"Standard tier parameters support a maximum parameter value of %d characters. To create a larger "+
				"parameter value, "+
				"upgrade the parameter to use the advanced-parameter tier.", maxStandard)
	}
	if size > maxAdvanced {
		return fail("ValidationException",
			"Advanced tier parameters support a maximum parameter value of %d characters.", maxAdvanced)
	}
	return nil
}

func (s *Service) deleteParameter(c *wire.Call) (any, error) {
	var in struct{ Name string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	name := s.plain(in.Name)
	if err := s.allow(c, name, nil); err != nil {
		return nil, err
	}
	if s.parameters[name] == nil {
		return nil, notFound(in.Name)
	}
	delete(s.parameters, name)
	return nil, nil
}
