package ec2

import (
	"reflect"
	"regexp"
	"strconv"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// template is a launch template: a list of numbered, immutable versions.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-launch-templates.html
type template struct {
	entity
	name           string
	createdBy      string
	token          string
	defaultVersion int64
	latest         int64 // the highest number so far, even if deleted
	versions       map[int64]*templateVersion
}

type templateVersion struct {
	number      int64
	description string
	created     time.Time
	createdBy   string
	token       string
	data        templateData
}

// TemplateRef names a launch template by ID or name, and a version: a number, "$Latest", or "$Default" (or "").
type TemplateRef struct {
	ID, Name, Version string
}

var templateName = regexp.MustCompile(`^[a-zA-Z0-9().\-/_]{3,128}$`)

// template returns a template by ID or name. Exactly one of the two must be set.
func (s *Service) template(id, name string) (*template, error) {
	switch {
	case id != "" && name != "":
		return nil,
			invalidCombination("You can specify either the launch template ID or the launch template name, not both.")
	case id == "" && name == "":
		return nil, failf("MissingParameter", "Either 'launchTemplateId' or 'launchTemplateName' must be provided.")
	case id != "":
		if !wellFormed(id, "lt") {
			return nil,
				failf("InvalidLaunchTemplateId.Malformed", "Invalid launch template ID: '%s' (expecting \"lt-...\")",
					id)
		}
		if t := s.templates[id]; t != nil {
			return t, nil
		}
		return nil,
			failf("InvalidLaunchTemplateId.NotFound",
				"The specified launch template, with template ID %s, does not exist.", id)
	}
	for _, t := range s.templates {
		if t.name == name {
			return t, nil
		}
	}
	return nil, failf("InvalidLaunchTemplateName.NotFoundException",
		"The specified launch template, with template name %s, does not exist.", name)
}

// version returns a version by number or alias.
func (t *template) version(v string) (*templateVersion, error) {
	n := t.defaultVersion
	switch v {
	case "", "$Default":
	case "$Latest":
		n = 0
		for k := range t.versions {
			n = max(n, k)
		}
	default:
		var err error
		if n, err = strconv.ParseInt(v, 10, 64); err != nil {
			return nil, failf("InvalidLaunchTemplateId.VersionMalformed",
				"The launch template version '%s' is not valid.", v)
		}
	}
	if found := t.versions[n]; found != nil {
		return found, nil
	}
	return nil,
		failf("InvalidLaunchTemplateId.VersionNotFound",
			"Could not find launch template version %s for the specified launch template ID %s.",
			v, t.id)
}

type createLaunchTemplateInput struct {
	ClientToken        string
	DryRun             bool
	LaunchTemplateData *templateData
	LaunchTemplateName string
	TagSpecification   []TagSpecification
	VersionDescription string
}

type launchTemplateXML struct {
	CreatedBy            string    `xml:"createdBy"`
	CreateTime           wire.Time `xml:"createTime"`
	DefaultVersionNumber int64     `xml:"defaultVersionNumber"`
	LatestVersionNumber  int64     `xml:"latestVersionNumber"`
	LaunchTemplateID     string    `xml:"launchTemplateId"`
	LaunchTemplateName   string    `xml:"launchTemplateName"`
	Tags                 []Tag     `xml:"tagSet>item"`
}

type launchTemplateVersionXML struct {
	CreatedBy          string       `xml:"createdBy"`
	CreateTime         wire.Time    `xml:"createTime"`
	DefaultVersion     bool         `xml:"defaultVersion"`
	LaunchTemplateData templateData `xml:"launchTemplateData"`
	LaunchTemplateID   string       `xml:"launchTemplateId"`
	LaunchTemplateName string       `xml:"launchTemplateName"`
	VersionDescription string       `xml:"versionDescription,omitempty"`
	VersionNumber      int64        `xml:"versionNumber"`
}

func (s *Service) templateXML(t *template) launchTemplateXML {
	return launchTemplateXML{
		CreatedBy: t.createdBy, CreateTime: wire.Time{Time: t.created}, DefaultVersionNumber: t.defaultVersion,
		LatestVersionNumber: t.latest,
		LaunchTemplateID:    t.id, LaunchTemplateName: t.name, Tags: s.tagList(t.id),
	}
}

func (t *template) versionXML(v *templateVersion) launchTemplateVersionXML {
	return launchTemplateVersionXML{
		CreatedBy: v.createdBy, CreateTime: wire.Time{Time: v.created}, DefaultVersion: v.number == t.defaultVersion,
		LaunchTemplateData: v.data,
		LaunchTemplateID:   t.id, LaunchTemplateName: t.name, VersionDescription: v.description,
		VersionNumber: v.number,
	}
}

type launchTemplateOutput struct {
	LaunchTemplate launchTemplateXML `xml:"launchTemplate"`
}

func (s *Service) createLaunchTemplate(c *wire.Call) (any, error) {
	var in createLaunchTemplateInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if !templateName.MatchString(in.LaunchTemplateName) {
		return nil, failf("InvalidLaunchTemplateName.MalformedException",
			"The specified launch template name (%s) is not valid: 3 to 128 letters, numbers, and ().-/_",
			in.LaunchTemplateName)
	}
	if err := checkTemplateData(in.LaunchTemplateData, in.VersionDescription); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "launch-template")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, c.Action, "launch-template", tags, nil); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	for _, t := range s.templates {
		if in.ClientToken != "" && t.token == in.ClientToken {
			if t.name != in.LaunchTemplateName || !reflect.DeepEqual(t.versions[1].data, *in.LaunchTemplateData) {
				return nil, tokenMismatch(in.ClientToken)
			}
			return launchTemplateOutput{s.templateXML(t)}, nil
		}
		if t.name == in.LaunchTemplateName {
			return nil, failf("InvalidLaunchTemplateName.AlreadyExistsException",
				"Launch template name already in use.")
		}
	}
	t := &template{
		entity: s.entity("lt"), name: in.LaunchTemplateName, createdBy: c.Principal.ARN, token: in.ClientToken,
		defaultVersion: 1, latest: 1,
		versions: map[int64]*templateVersion{},
	}
	t.versions[1] = &templateVersion{number: 1, description: in.VersionDescription, created: c.Now,
		createdBy: c.Principal.ARN, data: *in.LaunchTemplateData}
	s.templates[t.id] = t
	s.SetTags(t.id, tags)
	return launchTemplateOutput{s.templateXML(t)}, nil
}

// checkTemplateData refuses data that AWS does not accept in a template. AWS accepts other invalid data and refuses it
// only at a launch.
func checkTemplateData(d *templateData, description string) error {
	if d == nil {
		return missing("LaunchTemplateData")
	}
	if len(description) > 255 {
		return failf("InvalidParameterValue", "The version description is limited to 255 characters")
	}
	if d.InstanceRequirements != nil && d.InstanceType != nil {
		return invalidCombination("You can't specify both InstanceRequirements and InstanceType")
	}
	if _, err := decodeUserData(d.UserData); err != nil {
		return err
	}
	return checkMetadata(d.MetadataOptions)
}

type createLaunchTemplateVersionInput struct {
	ClientToken        string
	DryRun             bool
	LaunchTemplateData *templateData
	LaunchTemplateID   string `query:"LaunchTemplateId"`
	LaunchTemplateName string
	ResolveAlias       bool
	SourceVersion      string
	VersionDescription string
}

func (s *Service) createLaunchTemplateVersion(c *wire.Call) (any, error) {
	var in createLaunchTemplateVersionInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	t, err := s.template(in.LaunchTemplateID, in.LaunchTemplateName)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, t.id); err != nil {
		return nil, err
	}
	if err := checkTemplateData(in.LaunchTemplateData, in.VersionDescription); err != nil {
		return nil, err
	}
	data := *in.LaunchTemplateData
	if in.SourceVersion != "" {
		source, err := t.version(in.SourceVersion)
		if err != nil {
			return nil, err
		}
		// Fields in the request replace the fields of the source version.
		// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateLaunchTemplateVersion.html
		data = replaceFields(source.data, data)
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	type output struct {
		LaunchTemplateVersion launchTemplateVersionXML `xml:"launchTemplateVersion"`
	}
	for _, v := range t.versions {
		if in.ClientToken != "" && v.token == in.ClientToken {
			if !reflect.DeepEqual(v.data, data) {
				return nil, tokenMismatch(in.ClientToken)
			}
			return output{t.versionXML(v)}, nil
		}
	}
	t.latest++
	v := &templateVersion{number: t.latest, description: in.VersionDescription, created: c.Now,
		createdBy: c.Principal.ARN, token: in.ClientToken, data: data}
	t.versions[v.number] = v
	return output{t.versionXML(v)}, nil
}

func (s *Service) modifyLaunchTemplate(c *wire.Call) (any, error) {
	var in struct {
		ClientToken        string
		DefaultVersion     string `query:"SetDefaultVersion"`
		DryRun             bool
		LaunchTemplateID   string `query:"LaunchTemplateId"`
		LaunchTemplateName string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	t, err := s.template(in.LaunchTemplateID, in.LaunchTemplateName)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, t.id); err != nil {
		return nil, err
	}
	v, err := t.version(in.DefaultVersion)
	if err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	t.defaultVersion = v.number
	return launchTemplateOutput{s.templateXML(t)}, nil
}

func (s *Service) deleteLaunchTemplate(c *wire.Call) (any, error) {
	var in struct {
		DryRun             bool
		LaunchTemplateID   string `query:"LaunchTemplateId"`
		LaunchTemplateName string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	t, err := s.template(in.LaunchTemplateID, in.LaunchTemplateName)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, t.id); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	out := launchTemplateOutput{s.templateXML(t)}
	delete(s.templates, t.id)
	delete(s.tags, t.id)
	return out, nil
}
