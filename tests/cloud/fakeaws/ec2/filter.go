package ec2

import (
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// pageSize is the default number of results in an answer.
const pageSize = 1000

// Filter is one Filter.N of a Describe operation. A resource passes if it has one of the values. Values may contain the
// wildcards * and ?.
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html
type Filter struct {
	Name  string
	Value []string
}

// matches reports whether a resource passes all filters. The function `values` returns the resource's values for the
// name of a filter, and false for an unknown name. For an unknown name, matches returns AWS's error. The filters
// tag:KEY and tag-key use the parameter `tags`, unless it is nil.
func matches(filters []Filter, tags map[string]string, values func(name string) ([]string, bool)) (bool, error) {
	all := true
	for _, f := range filters {
		have, err := filterValues(f, tags, values)
		if err != nil {
			return false, err
		}
		some := slices.ContainsFunc(have, func(value string) bool {
			return slices.ContainsFunc(f.Value, func(pattern string) bool { return wildcard(pattern, value) })
		})
		all = all && some
	}
	return all, nil
}

func filterValues(f Filter, tags map[string]string, values func(name string) ([]string, bool)) ([]string, error) {
	if key, isTag := strings.CutPrefix(f.Name, "tag:"); isTag && tags != nil {
		if value, has := tags[key]; has {
			return []string{value}, nil
		}
		return nil, nil
	}
	if f.Name == "tag-key" && tags != nil {
		keys := make([]string, 0, len(tags))
		for key := range tags {
			keys = append(keys, key)
		}
		return keys, nil
	}
	have, known := values(f.Name)
	if !known {
		return nil, failf("InvalidParameterValue", "The filter '%s' is invalid", f.Name)
	}
	if len(f.Value) == 0 {
		return nil, failf("InvalidParameterValue", "The filter '%s' has no values", f.Name)
	}
	return have, nil
}

// wildcard reports whether a pattern matches a value. In the pattern, * means any characters and ? means one character.
// A backslash makes the next * or ? literal. Case matters.
func wildcard(pattern, value string) bool {
	p, v := []rune(pattern), []rune(value)
	star, mark := -1, 0 // position of the last *, and of the text after its match
	i, j := 0, 0
	for j < len(v) {
		if i < len(p) {
			escaped := p[i] == '\\' && i+1 < len(p)
			switch {
			case p[i] == '*':
				star, mark = i, j
				i++
				continue
			case escaped && p[i+1] == v[j]:
				i, j = i+2, j+1
				continue
			case !escaped && (p[i] == '?' || p[i] == v[j]):
				i, j = i+1, j+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		mark++
		i, j = star+1, mark
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}

// query holds the common parameters of the Describe operations.
type query struct {
	ids        []string
	filters    []Filter
	maxResults int
	nextToken  string
}

// find answers a Describe operation with one page of resources. A resource must pass the filters and, if the query has
// IDs, have one of them. If an ID has no visible resource, find returns the NotFound error. values maps the name of
// each known filter to a function that returns a resource's values.
func find[T resource](s *Service, table map[string]T, q query, values map[string]func(T) []string) (page []T,
	next string, err error) {
	for _, f := range q.filters {
		if _, known := values[f.Name]; !known && f.Name != "tag-key" && !strings.HasPrefix(f.Name, "tag:") {
			return nil, "", failf("InvalidParameterValue", "The filter '%s' is invalid", f.Name)
		}
	}
	if len(q.ids) > 0 && q.maxResults != 0 {
		return nil, "",
			failf("InvalidParameterCombination", "The parameter MaxResults cannot be used with a list of IDs")
	}
	var candidates []T
	for _, id := range q.ids {
		r, found := table[id]
		if !found || !s.visible(r) {
			return nil, "", s.notFound(id)
		}
		if !slices.ContainsFunc(candidates, func(c T) bool { return c.ID() == id }) {
			candidates = append(candidates, r)
		}
	}
	if len(q.ids) == 0 {
		candidates = sorted(table)
	}
	var found []T
	for _, r := range candidates {
		match, err := matches(q.filters, s.Tags(r.ID()), func(name string) ([]string, bool) {
			return values[name](r), true
		})
		if err != nil {
			return nil, "", err
		}
		if match && s.visible(r) {
			found = append(found, r)
		}
	}
	return paged(found, q.maxResults, q.nextToken)
}

// notFound returns the error for an ID that a Describe operation does not find (yet).
func (s *Service) notFound(id string) error {
	k, known := s.kind(id)
	if !known {
		return failf("InvalidID", "The ID '%s' is not valid", id)
	}
	return failf(k.code, "The %s '%s' does not exist", k.noun, id)
}

// paged cuts a page out of the results. AWS accepts 5 to 1000 for MaxResults.
func paged[T any](items []T, maxResults int, token string) ([]T, string, error) {
	switch {
	case maxResults < 0 || maxResults > 0 && maxResults < 5:
		return nil, "",
			failf("InvalidParameterValue",
				"Value ( %d ) for parameter maxResults is invalid. Expecting a value greater than 5.", maxResults)
	case maxResults == 0 || maxResults > pageSize:
		maxResults = pageSize
	}
	page, next, err := wire.Page(items, maxResults, token)
	if err != nil {
		return nil, "", failf("InvalidNextToken", "The token '%s' is invalid", token)
	}
	return page, next, nil
}
