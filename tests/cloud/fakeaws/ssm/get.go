package ssm

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type valueJSON struct {
	ARN, Name, Type, Value, DataType string
	Selector                         string `json:",omitempty"`
	LastModifiedDate                 wire.Time
	Version                          int64
}

// value returns a version of a parameter in the form of the Get operations. Number 0 means the current version.
func (s *Service) value(p *parameter, number int64, decrypted bool) (valueJSON, error) {
	v := p.current()
	if number == 0 {
		number = p.number()
	} else {
		i := number - p.first
		if i < 0 || i >= int64(len(p.versions)) {
			return valueJSON{}, fail("ParameterVersionNotFound", "Systems Manager could not find version %d of %s.",
				number, p.name)
		}
		v = p.versions[i]
	}
	out := valueJSON{ARN: s.arn(p.name), Name: p.name, Type: p.kind, Value: v.value, DataType: p.dataType,
		LastModifiedDate: wire.Time{Time: v.at}, Version: number}
	if p.kind == secure && !decrypted {
		sum := sha256.Sum256([]byte("sealed " + v.value))
		out.Value = "AQICAH" + base64.StdEncoding.EncodeToString(sum[:])
	}
	return out, nil
}

// selected checks the caller's permission and returns the value for a text NAME or NAME:VERSION. NAME may also be the
// parameter's ARN.
func (s *Service) selected(c *wire.Call, given string, decrypted bool) (valueJSON, error) {
	base, selector := given, ""
	if strings.Contains(strings.TrimPrefix(given, "arn:aws:ssm:"+s.region+":"+s.account+":parameter/"), ":") {
		i := strings.LastIndexByte(given, ':')
		base, selector = given[:i], given[i:]
	}
	name := s.plain(base)
	if err := s.allow(c, name, nil); err != nil {
		return valueJSON{}, err
	}
	p := s.parameters[name]
	if p == nil {
		return valueJSON{}, notFound(given)
	}
	var number int64
	if selector != "" {
		n, err := strconv.ParseInt(selector[1:], 10, 64)
		if err != nil || n < 1 {
			return valueJSON{},
				fail("ParameterVersionNotFound", "Systems Manager could not find a version with the label %q of %s.",
					selector[1:], name)
		}
		number = n
	}
	out, err := s.value(p, number, decrypted)
	out.Selector = selector
	return out, err
}

func notFound(name string) error {
	return fail("ParameterNotFound", "Parameter %s not found.", name)
}

func (s *Service) getParameter(c *wire.Call) (any, error) {
	var in struct {
		Name           string
		WithDecryption bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	out, err := s.selected(c, in.Name, in.WithDecryption)
	if err != nil {
		return nil, err
	}
	return struct{ Parameter valueJSON }{out}, nil
}

type metadataJSON struct {
	ARN, Name, Type, Tier, DataType, LastModifiedUser string
	Description                                       string `json:",omitempty"`
	KeyId                                             string `json:",omitempty"`
	AllowedPattern                                    string `json:",omitempty"`
	LastModifiedDate                                  wire.Time
	Version                                           int64
}

func (s *Service) describeParameters(c *wire.Call) (any, error) {
	var in struct {
		NextToken        string
		MaxResults       *int
		ParameterFilters []filter
		Shared           bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := c.Authorize("ssm:DescribeParameters", "*", nil); err != nil {
		return nil, err
	}
	found, err := s.filter(in.ParameterFilters)
	if err != nil {
		return nil, err
	}
	all := make([]metadataJSON, 0, len(found))
	for _, p := range found {
		all = append(all, metadataJSON{
			ARN: s.arn(p.name), Name: p.name, Type: p.kind, Tier: p.tier, DataType: p.dataType,
			LastModifiedUser: p.current().by, Description: p.description,
			KeyId: p.keyID, AllowedPattern: p.allowedPattern, LastModifiedDate: wire.Time{Time: p.current().at},
			Version: p.number(),
		})
	}
	page, next, err := page(all, in.MaxResults, 50, in.NextToken)
	return struct {
		Parameters []metadataJSON
		NextToken  string `json:",omitempty"`
	}{page, next}, err
}

// filter selects parameters.
// https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_ParameterStringFilter.html
type filter struct {
	Key, Option string
	Values      []string
}

func (s *Service) filter(filters []filter) ([]*parameter, error) {
	var out []*parameter
	for _, name := range slices.Sorted(maps.Keys(s.parameters)) {
		out = append(out, s.parameters[name])
	}
	for _, f := range filters {
		fits, err := f.compile()
		if err != nil {
			return nil, err
		}
		out = slices.DeleteFunc(out, func(p *parameter) bool {
			return !slices.ContainsFunc(f.Values, func(v string) bool { return fits(p, v) })
		})
	}
	return out, nil
}

func (f filter) compile() (func(p *parameter, want string) bool, error) {
	get, known := map[string]func(p *parameter) string{
		"Name":     func(p *parameter) string { return p.name },
		"Type":     func(p *parameter) string { return p.kind },
		"KeyId":    func(p *parameter) string { return p.keyID },
		"Tier":     func(p *parameter) string { return p.tier },
		"DataType": func(p *parameter) string { return p.dataType },
	}[f.Key]
	switch {
	case !known:
		return nil, fail("InvalidFilterKey", "The filter key %q is not valid", f.Key)
	case len(f.Values) == 0:
		return nil, fail("InvalidFilterValue", "The filter %s has no values", f.Key)
	case f.Option == "" || f.Option == "Equals":
		return func(p *parameter, want string) bool { return get(p) == want }, nil
	case f.Option == "BeginsWith":
		return func(p *parameter, want string) bool { return strings.HasPrefix(get(p), want) }, nil
	case f.Option == "Contains" && f.Key == "Name":
		return func(p *parameter, want string) bool { return strings.Contains(get(p), want) }, nil
	}
	return nil, fail("InvalidFilterOption", "The filter option %q is not valid for %s", f.Option, f.Key)
}

func page[T any](all []T, size *int, most int, token string) ([]T, string, error) {
	n := most
	if size != nil {
		n = *size
	}
	if n < 1 || n > most {
		return nil, "", fail("ValidationException", "MaxResults must be between 1 and %d", most)
	}
	return wire.Page(all, n, token)
}
