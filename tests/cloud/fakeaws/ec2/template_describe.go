package ec2

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) describeLaunchTemplates(c *wire.Call) (any, error) {
	var in struct {
		DryRun             bool
		Filter             []Filter
		LaunchTemplateID   []string `query:"LaunchTemplateId"`
		LaunchTemplateName []string
		MaxResults         int
		NextToken          string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, c.Action); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	table := s.templates
	if len(in.LaunchTemplateID)+len(in.LaunchTemplateName) > 0 {
		table = map[string]*template{}
		for _, id := range in.LaunchTemplateID {
			t, err := s.template(id, "")
			if err != nil {
				return nil, err
			}
			table[t.id] = t
		}
		for _, name := range in.LaunchTemplateName {
			t, err := s.template("", name)
			if err != nil {
				return nil, err
			}
			table[t.id] = t
		}
	}
	found, err := all(s, table, in.Filter, map[string]func(*template) []string{
		"create-time":          one(func(t *template) string { return timestamp(t.created) }),
		"launch-template-name": one(func(t *template) string { return t.name }),
	})
	if err != nil {
		return nil, err
	}
	page, next, err := templatePage(found, in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	var out struct {
		LaunchTemplates []launchTemplateXML `xml:"launchTemplates>item"`
		NextToken       string              `xml:"nextToken,omitempty"`
	}
	for _, t := range page {
		out.LaunchTemplates = append(out.LaunchTemplates, s.templateXML(t))
	}
	out.NextToken = next
	return out, nil
}

// templatePage cuts a page out of a list. The operations of launch templates accept 1 to 200 results, other operations
// of EC2 5 to 1000.
func templatePage[T any](items []T, maxResults int, token string) ([]T, string, error) {
	if maxResults < 0 || maxResults > 200 {
		return nil, "", failf("InvalidMaxResults", "The value for MaxResults must be between 1 and 200")
	}
	page, next, err := wire.Page(items, cmp.Or(maxResults, 200), token)
	if err != nil {
		return nil, "", failf("InvalidNextToken", "The token '%s' is invalid", token)
	}
	return page, next, nil
}

// all returns the resources that pass the filters, in the order of their creation.
func all[T resource](s *Service, table map[string]T, filters []Filter, values map[string]func(T) []string) ([]T,
	error) {
	var found []T
	token := ""
	for {
		page, next, err := find(s, table, query{filters: filters, nextToken: token}, values)
		if err != nil {
			return nil, err
		}
		if found = append(found, page...); next == "" {
			return found, nil
		}
		token = next
	}
}

type describeLaunchTemplateVersionsInput struct {
	DryRun             bool
	Filter             []Filter
	LaunchTemplateID   string `query:"LaunchTemplateId"`
	LaunchTemplateName string
	MaxResults         int
	MaxVersion         string
	MinVersion         string
	NextToken          string
	ResolveAlias       bool
	Version            []string `query:"LaunchTemplateVersion"`
}

// templateVersionPair is a version and its template.
type templateVersionPair struct {
	template *template
	version  *templateVersion
}

func (s *Service) describeLaunchTemplateVersions(c *wire.Call) (any, error) {
	var in describeLaunchTemplateVersionsInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, c.Action); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	versions, err := s.selectVersions(in)
	if err != nil {
		return nil, err
	}
	var items []launchTemplateVersionXML
	for _, v := range versions {
		match, err := matches(in.Filter, nil, func(name string) ([]string, bool) { return versionFilter(v, name) })
		if err != nil {
			return nil, err
		}
		if match {
			items = append(items, v.template.versionXML(v.version))
		}
	}
	page, next, err := templatePage(items, in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Versions  []launchTemplateVersionXML `xml:"launchTemplateVersionSet>item"`
		NextToken string                     `xml:"nextToken,omitempty"`
	}{page, next}, nil
}

// selectVersions returns the versions that match the request's parameters other than the filters, the newest of each
// template first.
func (s *Service) selectVersions(in describeLaunchTemplateVersionsInput) ([]templateVersionPair, error) {
	if in.LaunchTemplateID == "" && in.LaunchTemplateName == "" {
		// Without a template, a request may only use the aliases $Latest and $Default.
		if len(in.Version) == 0 || slices.ContainsFunc(in.Version, func(v string) bool {
			return v != "$Latest" && v != "$Default"
		}) {
			return nil, failf("MissingParameter", "Either 'launchTemplateId' or 'launchTemplateName' must be provided.")
		}
		var all []templateVersionPair
		for _, t := range sorted(s.templates) {
			for _, name := range in.Version {
				v, err := t.version(name)
				if err != nil {
					return nil, err
				}
				all = append(all, templateVersionPair{t, v})
			}
		}
		return all, nil
	}
	t, err := s.template(in.LaunchTemplateID, in.LaunchTemplateName)
	if err != nil {
		return nil, err
	}
	var all []templateVersionPair
	if len(in.Version) > 0 {
		if in.MinVersion != "" || in.MaxVersion != "" {
			return nil, invalidCombination("You cannot specify versions and a range of versions.")
		}
		for _, name := range in.Version {
			v, err := t.version(name)
			if err != nil {
				return nil, err
			}
			all = append(all, templateVersionPair{t, v})
		}
		return all, nil
	}
	low, err := boundary("MinVersion", in.MinVersion, 1)
	if err != nil {
		return nil, err
	}
	high, err := boundary("MaxVersion", in.MaxVersion, t.latest)
	if err != nil {
		return nil, err
	}
	for n := min(high, t.latest); n >= max(low, 1); n-- {
		if v := t.versions[n]; v != nil {
			all = append(all, templateVersionPair{t, v})
		}
	}
	return all, nil
}

func boundary(parameter, text string, otherwise int64) (int64, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, invalid(parameter, text)
	}
	return n, nil
}

// versionFilter returns a version's values for a filter of DescribeLaunchTemplateVersions, and whether the filter
// exists.
func versionFilter(p templateVersionPair, name string) ([]string, bool) {
	d := p.version.data
	var v string
	switch name {
	case "create-time":
		v = timestamp(p.version.created)
	case "ebs-optimized":
		v = boolText(d.EbsOptimized)
	case "http-endpoint", "http-tokens", "http-protocol-ipv4":
		if d.MetadataOptions != nil {
			v = value(map[string]*string{"http-endpoint": d.MetadataOptions.HTTPEndpoint,
				"http-tokens": d.MetadataOptions.HTTPTokens}[name])
		}
	case "host-resource-group-arn":
		if d.Placement != nil {
			v = value(d.Placement.HostResourceGroupARN)
		}
	case "iam-instance-profile":
		if d.IamInstanceProfile != nil {
			v = cmp.Or(value(d.IamInstanceProfile.ARN), value(d.IamInstanceProfile.Name))
		}
	case "image-id":
		v = value(d.ImageID)
	case "instance-type":
		v = value(d.InstanceType)
	case "is-default-version":
		v = strconv.FormatBool(p.version.number == p.template.defaultVersion)
	case "kernel-id":
		v = value(d.KernelID)
	case "ram-disk-id":
		v = value(d.RAMDiskID)
	default:
		return nil, false
	}
	if v == "" {
		return nil, true
	}
	return []string{v}, true
}
