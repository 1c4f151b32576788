package ec2

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// IDs of the accounts whose aliases DescribeImages accepts as owners.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeImages.html
const (
	ownerAmazon      = "137112412989"
	ownerMarketplace = "679593333241"
	ownerCanonical   = "099720109477"
)

// AMI is an image that a test adds. Empty fields get the values of a typical current Linux image.
type AMI struct {
	ID          string // ami-…; generated when empty
	Name        string
	Description string
	Owner       string // account; "amazon" is Amazon's; empty: the cloud's own
	Alias       string // amazon, aws-marketplace; derived from Owner when empty
	Arch        string // x86_64 (default), arm64
	Created     time.Time
	Deprecated  time.Time // zero: never
	State       string    // available (default), pending, failed, deregistered …
	Private     bool
	RootDevice  string // default /dev/xvda
	RootGiB     int32  // default 8
	BootMode    string // default uefi-preferred
	IMDSv2      bool   // HttpTokens is "required" unless a launch sets it
	Tags        map[string]string
}

// image is a stored image.
type image struct {
	entity
	ami      AMI
	snapshot string
}

// AddSnapshot adds a snapshot of an account, and returns its ID. It takes the cloud's lock.
func (s *Service) AddSnapshot(owner string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := newID("snap")
	s.snapshots[id] = owner
	return id
}

// AddImage adds an image and returns its ID. It takes the cloud's lock.
func (s *Service) AddImage(a AMI) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.ID == "" {
		a.ID = newID("ami")
	}
	switch a.Owner {
	case "":
		a.Owner = s.cfg.Account
	case "amazon":
		a.Owner = ownerAmazon
	}
	if a.Alias == "" {
		a.Alias = map[string]string{ownerAmazon: "amazon", ownerMarketplace: "aws-marketplace"}[a.Owner]
	}
	a.Arch = cmp.Or(a.Arch, archAMD64)
	a.Name = cmp.Or(a.Name, a.ID)
	a.State = cmp.Or(a.State, "available")
	a.RootDevice = cmp.Or(a.RootDevice, "/dev/xvda")
	a.RootGiB = cmp.Or(a.RootGiB, 8)
	a.BootMode = cmp.Or(a.BootMode, "uefi-preferred")
	if a.Created.IsZero() {
		a.Created = s.cfg.Now()
	}
	e := s.entity("ami")
	e.id, e.created = a.ID, a.Created
	m := &image{entity: e, ami: a, snapshot: newID("snap")}
	s.images[a.ID], s.snapshots[m.snapshot] = m, a.Owner
	s.SetTags(a.ID, a.Tags)
	s.SetTags(m.snapshot, a.Tags)
	return a.ID
}

// SetImageState changes an image's state. "deregistered" removes the image, like DeregisterImage. An image in another
// state than "available" is visible, but cannot be launched. It takes the cloud's lock.
func (s *Service) SetImageState(id, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == "deregistered" {
		delete(s.images, id)
		delete(s.tags, id)
		return
	}
	if m := s.images[id]; m != nil {
		m.ami.State = state
	}
}

// imageByID returns an image if the service's account can see it.
func (s *Service) imageByID(id string) (*image, error) {
	if !wellFormed(id, "ami") {
		return nil, failf("InvalidAMIID.Malformed", "Invalid id: \"%s\" (expecting \"ami-...\")", id)
	}
	m := s.images[id]
	if m == nil || m.ami.Private && m.ami.Owner != s.cfg.Account {
		return nil, failf("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
	}
	return m, nil
}

// launchableImage returns an image if the service's account can launch it.
func (s *Service) launchableImage(id string) (*image, error) {
	m, err := s.imageByID(id)
	if err == nil && m.ami.State != "available" {
		err = failf("InvalidAMIID.Unavailable", "The image ID '[%s]' is not available", id)
	}
	return m, err
}

type describeImagesInput struct {
	ExecutableBy      []string
	Filter            []Filter
	ImageID           []string `query:"ImageId"`
	IncludeDeprecated bool
	IncludeDisabled   bool
	Owner             []string
	MaxResults        int
	NextToken         string
	DryRun            bool
}

type describeImagesOutput struct {
	Images    []imageXML `xml:"imagesSet>item"`
	NextToken string     `xml:"nextToken,omitempty"`
}

type imageXML struct {
	Architecture       string        `xml:"architecture"`
	BlockDeviceMapping []blockDevice `xml:"blockDeviceMapping>item"`
	BootMode           string        `xml:"bootMode,omitempty"`
	CreationDate       string        `xml:"creationDate"`
	DeprecationTime    string        `xml:"deprecationTime,omitempty"`
	Description        string        `xml:"description,omitempty"`
	EnaSupport         bool          `xml:"enaSupport"`
	Hypervisor         string        `xml:"hypervisor"`
	ImageID            string        `xml:"imageId"`
	ImageLocation      string        `xml:"imageLocation"`
	ImageOwnerAlias    string        `xml:"imageOwnerAlias,omitempty"`
	ImageOwnerID       string        `xml:"imageOwnerId"`
	ImageState         string        `xml:"imageState"`
	ImageType          string        `xml:"imageType"`
	ImdsSupport        string        `xml:"imdsSupport,omitempty"`
	IsPublic           bool          `xml:"isPublic"`
	Name               string        `xml:"name"`
	PlatformDetails    string        `xml:"platformDetails"`
	RootDeviceName     string        `xml:"rootDeviceName"`
	RootDeviceType     string        `xml:"rootDeviceType"`
	SriovNetSupport    string        `xml:"sriovNetSupport"`
	Tags               []Tag         `xml:"tagSet>item"`
	UsageOperation     string        `xml:"usageOperation"`
	VirtualizationType string        `xml:"virtualizationType"`
}

func (s *Service) imageXML(m *image) imageXML {
	owner := cmp.Or(m.ami.Alias, m.ami.Owner)
	out := imageXML{
		Architecture: m.ami.Arch, BootMode: m.ami.BootMode, CreationDate: m.ami.Created.UTC().Format(
			"2006-01-02T15:04:05.000Z"), Description: m.ami.Description, EnaSupport: true,
		Hypervisor: "xen", ImageID: m.id, ImageLocation: owner + "/" + m.ami.Name, ImageOwnerAlias: m.ami.Alias,
		ImageOwnerID: m.ami.Owner, ImageState: m.ami.State,
		ImageType: "machine", IsPublic: s.public(m), Name: m.ami.Name, PlatformDetails: "Linux/UNIX",
		RootDeviceName: m.ami.RootDevice,
		RootDeviceType: "ebs", SriovNetSupport: "simple", Tags: s.tagList(m.id), UsageOperation: "RunInstances",
		VirtualizationType: "hvm",
		BlockDeviceMapping: []blockDevice{{DeviceName: &m.ami.RootDevice, Ebs: &ebsDevice{
			DeleteOnTermination: ptr(true), Encrypted: ptr(false), SnapshotID: &m.snapshot, VolumeSize: &m.ami.RootGiB,
			VolumeType: ptr("gp3"), Iops: ptr(int32(3000)),
			Throughput: ptr(int32(125)),
		}}},
	}
	if m.ami.IMDSv2 {
		out.ImdsSupport = "v2.0"
	}
	if !m.ami.Deprecated.IsZero() {
		out.DeprecationTime = m.ami.Deprecated.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return out
}

// imageFilters are the filters of DescribeImages, by name.
var imageFilters = map[string]func(imageXML) []string{
	"architecture":                     func(m imageXML) []string { return []string{m.Architecture} },
	"block-device-mapping.device-name": func(m imageXML) []string { return []string{m.RootDeviceName} },
	"block-device-mapping.encrypted":   func(imageXML) []string { return []string{"false"} },
	"block-device-mapping.volume-type": func(m imageXML) []string {
		return []string{*m.BlockDeviceMapping[0].Ebs.VolumeType}
	},
	"block-device-mapping.snapshot-id": func(m imageXML) []string {
		return []string{*m.BlockDeviceMapping[0].Ebs.SnapshotID}
	},
	"block-device-mapping.volume-size": func(m imageXML) []string {
		return []string{fmt.Sprint(*m.BlockDeviceMapping[0].Ebs.VolumeSize)}
	},
	"creation-date":       func(m imageXML) []string { return []string{m.CreationDate} },
	"description":         func(m imageXML) []string { return []string{m.Description} },
	"ena-support":         func(imageXML) []string { return []string{"true"} },
	"hypervisor":          func(m imageXML) []string { return []string{m.Hypervisor} },
	"image-id":            func(m imageXML) []string { return []string{m.ImageID} },
	"image-type":          func(m imageXML) []string { return []string{m.ImageType} },
	"is-public":           func(m imageXML) []string { return []string{fmt.Sprint(m.IsPublic)} },
	"manifest-location":   func(m imageXML) []string { return []string{m.ImageLocation} },
	"name":                func(m imageXML) []string { return []string{m.Name} },
	"owner-alias":         func(m imageXML) []string { return []string{m.ImageOwnerAlias} },
	"owner-id":            func(m imageXML) []string { return []string{m.ImageOwnerID} },
	"platform":            func(imageXML) []string { return nil }, // Windows only
	"root-device-name":    func(m imageXML) []string { return []string{m.RootDeviceName} },
	"root-device-type":    func(m imageXML) []string { return []string{m.RootDeviceType} },
	"state":               func(m imageXML) []string { return []string{m.ImageState} },
	"sriov-net-support":   func(m imageXML) []string { return []string{m.SriovNetSupport} },
	"virtualization-type": func(m imageXML) []string { return []string{m.VirtualizationType} },
	"block-device-mapping.delete-on-termination": func(imageXML) []string { return []string{"true"} },
}

func (s *Service) describeImages(c *wire.Call) (any, error) {
	var in describeImagesInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeImages"); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	for _, id := range in.ImageID {
		if _, err := s.imageByID(id); err != nil {
			return nil, err
		}
	}
	if in.MaxResults != 0 && len(in.ImageID) > 0 {
		return nil, invalidCombination("The parameter imagesSet cannot be used with the parameter maxResults")
	}
	for _, o := range append(slices.Clone(in.Owner), in.ExecutableBy...) {
		if err := checkOwner(o); err != nil {
			return nil, err
		}
	}
	eligible := map[string]*image{}
	for id, m := range s.images {
		if s.eligible(m, in) {
			eligible[id] = m
		}
	}
	found, next, err := find(s, eligible, query{filters: in.Filter, maxResults: in.MaxResults, nextToken: in.NextToken},
		through(s.imageXML, imageFilters))
	if err != nil {
		return nil, err
	}
	out := describeImagesOutput{NextToken: next}
	for _, m := range found {
		out.Images = append(out.Images, s.imageXML(m))
	}
	return out, nil
}

// eligible reports whether an image matches the request's parameters other than the filters.
func (s *Service) eligible(m *image, in describeImagesInput) bool {
	own := m.ami.Owner == s.cfg.Account
	named := slices.Contains(in.ImageID, m.id)
	deprecated := !m.ami.Deprecated.IsZero() && !s.cfg.Now().Before(m.ami.Deprecated)
	switch {
	case m.ami.Private && !own,
		len(in.ImageID) > 0 && !named,
		deprecated && !own && !in.IncludeDeprecated && !named,
		m.ami.State == "disabled" && !in.IncludeDisabled && !named,
		len(in.Owner) > 0 && !slices.ContainsFunc(in.Owner, func(o string) bool { return s.ownedBy(m, o) }),
		len(in.ExecutableBy) > 0 && !slices.ContainsFunc(in.ExecutableBy, func(by string) bool {
			return by == "all" && s.public(m) || by == m.ami.Owner
		}):
		return false
	}
	return true
}

// checkOwner refuses an owner that is neither an account nor an alias.
func checkOwner(o string) error {
	account := len(o) == 12 && strings.Trim(o, "0123456789") == ""
	if account || slices.Contains([]string{"self", "amazon", "aws-marketplace", "aws-backup-vault", "all"}, o) {
		return nil
	}
	return failf("InvalidUserID.Malformed", "Invalid user id: \"%s\"", o)
}

func (s *Service) ownedBy(m *image, owner string) bool {
	switch owner {
	case "self":
		return m.ami.Owner == s.cfg.Account
	case m.ami.Alias, m.ami.Owner:
		return owner != ""
	}
	return false
}

// public reports whether every account may launch an image. In this fake, the images of the service's account are
// private.
func (s *Service) public(m *image) bool { return !m.ami.Private && m.ami.Owner != s.cfg.Account }

// imageContext returns the condition keys of an image.
func (s *Service) imageContext(id string) policy.Context {
	m := s.images[id]
	return policy.Context{
		"ec2:ImageID": {id}, "ec2:ImageType": {"machine"}, "ec2:Owner": {cmp.Or(m.ami.Alias, m.ami.Owner)},
		"ec2:Public":         {fmt.Sprint(s.public(m))},
		"ec2:RootDeviceType": {"ebs"},
	}
}
