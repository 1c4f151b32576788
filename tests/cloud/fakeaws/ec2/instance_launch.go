package ec2

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// launch is the state of one launch by RunInstances or by Auto Scaling, until the instances exist.
type launch struct {
	data     launchData // merged with the template's data
	asked    launchData // data of the request alone
	min, max int32
	subnet   string // from the request's top level
	implicit bool   // the request did not contain the primary interface
	token    tokenKey
	by       string            // AWS service that launches, "" for users
	extra    map[string]string // AWS's own tags on the instance

	templateID      string
	templateName    string
	templateVersion int64

	zone string // "" if the request names none

	// Set by resolve.
	image    *image
	kind     *instanceType
	net      []nicPlan
	disks    []disk
	profile  *Profile
	userdata []byte
	tags     map[string]map[string]string // by resource type
	spot     bool

	keyRefused bool // Set after resolve: a KMS key of the volumes may not be used.
}

// launchTypes are the resource types that a launch may tag.
var launchTypes = []string{"instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu"}

// resolve looks up everything that a launch names. It refuses resources that do not exist, and settings that do not fit
// together.
func (s *Service) resolve(l *launch) error {
	d := &l.data
	var err error
	if d.ImageID == nil {
		return failf("MissingParameter", "The request must contain the parameter ImageId")
	}
	if l.image, err = s.launchableImage(*d.ImageID); err != nil {
		return err
	}
	name := orElse(d.InstanceType, "m1.small") // the documented default, which no VPC supports any more
	if l.kind = s.types[name]; l.kind == nil {
		return failf("InvalidParameterValue", "Invalid value '%s' for InstanceType.", name)
	}
	if l.kind.arch != l.image.ami.Arch {
		return failf("InvalidParameterValue",
			"The architecture '%s' of the specified instance type does not match the architecture '%s' of the "+
				"specified AMI. Specify an instance "+
				"type and an AMI that have matching architectures, and try again.", l.kind.arch, l.image.ami.Arch)
	}
	if l.userdata, err = decodeUserData(d.UserData); err != nil {
		return err
	}
	if l.profile, err = s.profileOf(d.IamInstanceProfile); err != nil {
		return err
	}
	if d.KeyName != nil {
		return failf("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", *d.KeyName)
	}
	if l.disks, err = disks(l.image, d.BlockDeviceMapping); err != nil {
		return err
	}
	for _, d := range l.disks {
		if d.named && s.snapshots[d.snapshot] == "" {
			return failf("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", d.snapshot)
		}
	}
	if err := l.checkOptions(); err != nil {
		return err
	}
	if err := s.checkPlacement(d.Placement); err != nil {
		return err
	}
	if l.tags, err = launchTagsOf(d.TagSpecification); err != nil {
		return err
	}
	l.spot = d.InstanceMarketOptions != nil && value(d.InstanceMarketOptions.MarketType) == "spot"
	if l.tags["spot-instances-request"] != nil && !l.spot {
		return failf("InvalidParameterValue",
			"'spot-instances-request' is not a valid taggable resource type for this operation.")
	}
	return s.planInterfaces(l)
}

// launchTagsOf returns the tags of a launch by resource type.
func launchTagsOf(specs []launchTags) (map[string]map[string]string, error) {
	plain := make([]TagSpecification, len(specs))
	for n, spec := range specs {
		plain[n] = TagSpecification(spec)
	}
	all := map[string]map[string]string{}
	for _, t := range launchTypes {
		tags, err := specified(plain, t, launchTypes...)
		if err != nil {
			return nil, err
		}
		if len(tags) > 0 {
			all[t] = tags
		}
	}
	return all, nil
}

// profileOf returns the instance profile of a launch.
func (s *Service) profileOf(p *profileSpecification) (*Profile, error) {
	if p == nil {
		return nil, nil
	}
	arn, name := value(p.ARN), value(p.Name)
	switch {
	case arn != "" && name != "":
		return nil,
			invalidCombination(
				"The parameter 'iamInstanceProfile.name' may not be used in combination with 'iamInstanceProfile.arn'")
	case arn == "" && name == "":
		return nil,
			failf("MissingParameter",
				"The request must contain the parameter iamInstanceProfile.name or iamInstanceProfile.arn")
	case arn != "" && !strings.HasPrefix(arn, "arn:aws:iam::"):
		return nil,
			failf("InvalidIamInstanceProfileArn.Malformed", "The specified IAM instance profile ARN (%s) is not valid",
				arn)
	}
	if s.identity == nil {
		name = cmp.Or(name, arn[strings.LastIndexByte(arn, '/')+1:])
		return &Profile{
			Name: name, ARN: "arn:aws:iam::" + s.cfg.Account + ":instance-profile/" + name, ID: "AIPA" +
				strings.Repeat("0", 17), RoleName: name,
			RoleARN: "arn:aws:iam::" + s.cfg.Account + ":role/" + name,
		}, nil
	}
	found, known := s.identity.InstanceProfile(cmp.Or(arn, name))
	switch {
	case !known && arn != "":
		return nil,
			failf("InvalidParameterValue",
				"Value (%s) for parameter iamInstanceProfile.arn is invalid. Invalid IAM Instance Profile ARN", arn)
	case !known:
		return nil,
			failf("InvalidParameterValue",
				"Value (%s) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name", name)
	case found.RoleARN == "":
		return nil, failf("InvalidParameterValue", "IAM Instance Profile \"%s\" has no associated IAM Roles", found.ARN)
	}
	return &found, nil
}

// checkOptions checks the remaining options of a launch. It refuses the values that AWS refuses.
func (l *launch) checkOptions() error {
	d := &l.data
	if err := checkMarket(d.InstanceMarketOptions); err != nil {
		return err
	}
	if m := d.InstanceMarketOptions; m != nil && value(m.MarketType) != "spot" && d.reservation() == nil {
		return invalidCombination("The market type capacity-block needs a CapacityReservationTarget.")
	}
	if err := checkMetadata(d.MetadataOptions); err != nil {
		return err
	}
	if b := d.InstanceInitiatedShutdownBehavior; b != nil && *b != "stop" && *b != "terminate" {
		return invalid("instanceInitiatedShutdownBehavior", *b)
	}
	if o := d.CreditSpecification; o != nil {
		if !l.kind.burstable {
			return failf("InvalidParameterCombination", "The specified instance type %s does not use CPU credits.",
				l.kind.name)
		}
		if v := value(o.CPUCredits); v != "standard" && v != "unlimited" {
			return failf("InvalidCpuCredits.Malformed", "The value '%s' for CpuCredits is invalid", v)
		}
	}
	if o := d.CPUOptions; o != nil {
		if (o.CoreCount == nil) != (o.ThreadsPerCore == nil) {
			return invalidCombination("CoreCount and ThreadsPerCore must be specified together")
		}
		if o.CoreCount != nil && (*o.CoreCount < 1 || int(*o.CoreCount) > l.kind.cores() || *o.ThreadsPerCore < 1 ||
			int(*o.ThreadsPerCore) > l.kind.threads) {
			return failf("InvalidParameterValue",
				"The specified CPU options are not supported for the instance type %s", l.kind.name)
		}
	}
	if h := d.HibernationOptions; h != nil && value(h.Configured) {
		if err := l.checkHibernation(); err != nil {
			return err
		}
		if e := d.EnclaveOptions; e != nil && value(e.Enabled) {
			return invalidCombination("An instance cannot be enabled for both hibernation and Nitro Enclaves.")
		}
	}
	if e := d.EnclaveOptions; e != nil && value(e.Enabled) && (l.kind.burstable || l.kind.vcpus < 4) {
		return failf("Unsupported", "The instance type %s does not support Nitro Enclaves.", l.kind.name)
	}
	if m := d.MaintenanceOptions; m != nil && m.AutoRecovery != nil && *m.AutoRecovery != "default" &&
		*m.AutoRecovery != "disabled" {
		return invalid("autoRecovery", *m.AutoRecovery)
	}
	if o := d.PrivateDNSNameOptions; o != nil && o.HostnameType != nil && *o.HostnameType != "ip-name" &&
		*o.HostnameType != "resource-name" {
		return invalid("hostnameType", *o.HostnameType)
	}
	return nil
}

// checkHibernation refuses hibernation for a launch that lacks a prerequisite.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/hibernating-prerequisites.html
func (l *launch) checkHibernation() error {
	root := l.disks[0]
	switch {
	case !l.kind.hibernates():
		return failf("UnsupportedHibernationConfiguration", "The instance type %s does not support hibernation.",
			l.kind.name)
	case !root.encrypted:
		return failf("UnsupportedHibernationConfiguration",
			"The root volume must be encrypted to launch an instance with hibernation.")
	case int(root.size)<<10 <= l.kind.memory:
		return failf("UnsupportedHibernationConfiguration",
			"The root volume of %d GiB is too small for the memory of an instance with hibernation.", root.size)
	}
	return nil
}

// checkPlacement refuses an unknown tenancy, placement group or dedicated host. Groups of hosts belong to another
// service, so every ARN is accepted.
func (s *Service) checkPlacement(p *placement) error {
	if p == nil {
		return nil
	}
	tenancy := p.tenancy()
	switch {
	case tenancy != "default" && tenancy != "dedicated" && tenancy != "host":
		return failf("InvalidParameterValue", "The tenancy '%s' is not supported here", tenancy)
	case p.GroupID != nil || p.GroupName != nil && !s.placements[*p.GroupName]:
		return failf("InvalidPlacementGroup.Unknown", "The Placement Group '%s' is unknown.",
			cmp.Or(value(p.GroupName), value(p.GroupID)))
	case p.HostID != nil && !s.hosts[*p.HostID]:
		return failf("InvalidHostID.NotFound", "The specified host does not exist")
	case p.HostID != nil && tenancy != "host":
		return invalidCombination("The parameter hostId needs the tenancy 'host'")
	}
	return nil
}

// checkMetadata refuses invalid metadata options.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceMetadataOptionsRequest.html
func checkMetadata(m *metadataOptions) error {
	if m == nil {
		return nil
	}
	for _, option := range []struct {
		name    string
		value   *string
		allowed []string
	}{
		{"HttpTokens", m.HTTPTokens, []string{"optional", "required"}},
		{"HttpEndpoint", m.HTTPEndpoint, []string{"enabled", "disabled"}},
		{"HttpProtocolIpv6", m.HTTPProtocolIpv6, []string{"enabled", "disabled"}},
		{"InstanceMetadataTags", m.InstanceMetadataTags, []string{"enabled", "disabled"}},
	} {
		if option.value != nil && !slices.Contains(option.allowed, *option.value) {
			return invalid(option.name, *option.value)
		}
	}
	if h := m.HTTPPutResponseHopLimit; h != nil && (*h < 1 || *h > 64) {
		return invalid("HttpPutResponseHopLimit", *h)
	}
	return nil
}

// metadata returns the metadata options of the new instances. An option of the launch takes precedence over the image,
// and the image over AWS's defaults.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-options.html
func (l *launch) metadata() *metadataOptions {
	m := value(l.data.MetadataOptions)
	tokens, hops := "optional", int32(1)
	if l.image.ami.IMDSv2 {
		tokens, hops = "required", 2
	}
	return &metadataOptions{
		HTTPEndpoint: ptr(orElse(m.HTTPEndpoint, "enabled")), HTTPProtocolIpv6: ptr(orElse(m.HTTPProtocolIpv6,
			"disabled")), HTTPTokens: ptr(orElse(m.HTTPTokens, tokens)),
		HTTPPutResponseHopLimit: ptr(orElse(m.HTTPPutResponseHopLimit, hops)),
		InstanceMetadataTags:    ptr(orElse(m.InstanceMetadataTags, "disabled")),
	}
}

// room returns the number of instances to launch. It refuses a launch for which the zone, subnet or quota has no room.
func (s *Service) room(l *launch) (int, error) {
	zone, subnet := l.net[0].zone, l.net[0].subnet
	if !s.offered(l.kind.name, zone) {
		return 0, s.unsupportedType(l.kind.name, zone)
	}
	if s.cfg.Faults != nil {
		if err := s.cfg.Faults.Capacity(l.kind.name, zone, subnet); err != nil {
			return 0, err
		}
	}
	count := int(l.max)
	vcpus, spots := s.used()
	switch {
	case l.spot && s.spotLimit > 0:
		if count = min(count, s.spotLimit-spots); count < int(l.min) {
			return 0, failf("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
		}
	case !l.spot && s.vcpuLimit > 0:
		if count = min(count, (s.vcpuLimit-vcpus)/l.kind.vcpus); count < int(l.min) {
			return 0, s.tooManyVCPUs()
		}
	}
	return s.roomInSubnets(l, count)
}

// used returns how many vCPUs the account's on-demand instances have, and how many spot instances there are. A stopped
// instance does not count.
func (s *Service) used() (vcpus, spots int) {
	for _, i := range s.instances {
		switch {
		case !i.alive() || i.state == stateStopped:
		case i.spot != nil:
			spots++
		default:
			vcpus += i.kind.vcpus
		}
	}
	return vcpus, spots
}

func (s *Service) tooManyVCPUs() error {
	return failf("VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit of %d "+
		"allows for the instance bucket that the specified instance type belongs to. Please visit "+
		"http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.", s.vcpuLimit)
}

// launch creates and boots the instances of a resolved launch.
func (s *Service) launch(l *launch) (*reservation, error) {
	count, err := s.room(l)
	if err != nil {
		return nil, err
	}
	r := &reservation{entity: s.entity("r"), requester: l.by, key: l.token}
	for n := range count {
		i, err := s.create(l, r, n)
		if err != nil {
			for _, made := range r.instances {
				s.erase(made)
			}
			return nil, err
		}
		r.instances = append(r.instances, i)
	}
	s.reservations[r.id] = r
	if l.token.token != "" {
		s.tokens[l.token] = r
	}
	for _, i := range r.instances {
		s.boot(i)
	}
	return r, nil
}

// create creates one instance and the resources that belong to it. It does not boot the instance.
func (s *Service) create(l *launch, r *reservation, index int) (*instance, error) {
	now := s.cfg.Now()
	i := &instance{
		entity: s.entity("i"), reservation: r, index: index, data: l.data, kind: l.kind, image: l.image,
		zone: l.net[0].zone, subnet: l.net[0].subnet, vpc: l.net[0].vpc,
		token: l.token.token, launched: now, userdata: l.userdata, profile: l.profile, groups: l.net[0].groups,
		state: statePending, changed: now,
		protection: value(l.data.DisableAPITermination), keyRefused: l.keyRefused,
	}
	i.data.MetadataOptions = l.metadata()
	s.instances[i.id] = i
	s.SetTags(i.id, l.tags["instance"])
	s.SetTags(i.id, l.extra)
	if l.templateID != "" {
		s.SetTags(i.id, map[string]string{"aws:ec2launchtemplate:id": l.templateID,
			"aws:ec2launchtemplate:version": fmt.Sprint(l.templateVersion)})
	}
	if err := s.createInterfaces(l, i); err != nil {
		s.erase(i)
		return nil, err
	}
	for _, d := range l.disks {
		s.SetTags(s.createVolume(i, d).id, l.tags["volume"])
	}
	if l.spot {
		i.spot, s.spotRole = s.createSpotRequest(i), true
		s.SetTags(i.spot.id, l.tags["spot-instances-request"])
	}
	i.privateName = s.hostName(i)
	return i, nil
}

// erase removes an instance of a failed launch.
func (s *Service) erase(i *instance) {
	s.releaseInterfaces(i)
	s.releaseVolumes(i)
	if i.spot != nil {
		delete(s.spotRequests, i.spot.id)
		delete(s.tags, i.spot.id)
	}
	delete(s.instances, i.id)
	delete(s.tags, i.id)
}

// overlay merges a template with a request. The request takes precedence per field. Structures are merged recursively,
// block devices by name, interfaces by index, and tags by resource type and key.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
func overlay(base, over launchData) launchData {
	out := base
	overlayFields(&out, over)
	out.BlockDeviceMapping = joinBy(base.BlockDeviceMapping, over.BlockDeviceMapping, func(b blockDevice) string {
		return value(b.DeviceName)
	},
		func(a, b blockDevice) blockDevice { return replaceFields(a, b) })
	out.NetworkInterface = joinBy(base.NetworkInterface, over.NetworkInterface, func(n launchInterface) string {
		return fmt.Sprint(value(n.DeviceIndex))
	},
		func(a, b launchInterface) launchInterface { return replaceFields(a, b) })
	out.TagSpecification = joinBy(base.TagSpecification, over.TagSpecification, func(t launchTags) string {
		return t.ResourceType
	}, func(a, b launchTags) launchTags {
		tags := map[string]string{}
		for _, t := range slices.Concat(a.Tag, b.Tag) {
			tags[t.Key] = t.Value
		}
		a.Tag = nil
		for _, key := range slices.Sorted(maps.Keys(tags)) {
			a.Tag = append(a.Tag, Tag{Key: key, Value: tags[key]})
		}
		return a
	})
	return out
}

// joinBy merges two lists. Items with the same key are joined.
func joinBy[T any](base, over []T, key func(T) string, join func(a, b T) T) []T {
	out := slices.Clone(base)
	for _, o := range over {
		if n := slices.IndexFunc(out, func(b T) bool { return key(b) == key(o) }); n >= 0 {
			out[n] = join(out[n], o)
		} else {
			out = append(out, o)
		}
	}
	return out
}
