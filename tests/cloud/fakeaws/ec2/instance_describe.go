package ec2

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type reservationXML struct {
	Groups      []groupRefXML `xml:"groupSet>item"`
	Instances   []instanceXML `xml:"instancesSet>item"`
	OwnerID     string        `xml:"ownerId"`
	RequesterID string        `xml:"requesterId,omitempty"`
	ID          string        `xml:"reservationId"`
}

type instanceXML struct {
	AmiLaunchIndex      int                  `xml:"amiLaunchIndex"`
	Architecture        string               `xml:"architecture"`
	BlockDevices        []attachedDevice     `xml:"blockDeviceMapping>item"`
	BootMode            string               `xml:"bootMode,omitempty"`
	CapacityReservation *capacityReservation `xml:"capacityReservationSpecification"`
	ClientToken         string               `xml:"clientToken"`
	CPUOptions          cpuOptions           `xml:"cpuOptions"`
	CurrentBootMode     string               `xml:"currentInstanceBootMode,omitempty"`
	EbsOptimized        bool                 `xml:"ebsOptimized"`
	EnaSupport          bool                 `xml:"enaSupport"`
	Enclave             enclaveOptions       `xml:"enclaveOptions"`
	Hibernation         hibernationOptions   `xml:"hibernationOptions"`
	Hypervisor          string               `xml:"hypervisor"`
	Profile             *profileXML          `xml:"iamInstanceProfile"`
	ImageID             string               `xml:"imageId"`
	ID                  string               `xml:"instanceId"`
	Lifecycle           string               `xml:"instanceLifecycle,omitempty"`
	Type                string               `xml:"instanceType"`
	Ipv6Address         string               `xml:"ipv6Address,omitempty"`
	KeyName             string               `xml:"keyName,omitempty"`
	LaunchTime          wire.Time            `xml:"launchTime"`
	Maintenance         maintenanceXML       `xml:"maintenanceOptions"`
	Metadata            metadataXML          `xml:"metadataOptions"`
	Monitoring          stateOnly            `xml:"monitoring"`
	Interfaces          []interfaceOfXML     `xml:"networkInterfaceSet>item"`
	Performance         *performanceOptions  `xml:"networkPerformanceOptions"`
	Placement           placement            `xml:"placement"`
	PlatformDetails     string               `xml:"platformDetails"`
	PrivateDNSName      string               `xml:"privateDnsName"`
	NameOptions         *nameOptions         `xml:"privateDnsNameOptions"`
	PrivateIP           string               `xml:"privateIpAddress,omitempty"`
	PublicDNSName       string               `xml:"dnsName"`
	PublicIP            string               `xml:"ipAddress,omitempty"`
	RootDeviceName      string               `xml:"rootDeviceName"`
	RootDeviceType      string               `xml:"rootDeviceType"`
	Groups              []groupRefXML        `xml:"groupSet>item"`
	SourceDestCheck     *bool                `xml:"sourceDestCheck"`
	SpotRequestID       string               `xml:"spotInstanceRequestId,omitempty"`
	State               stateXML             `xml:"instanceState"`
	StateReason         *stateReason         `xml:"stateReason"`
	Transition          string               `xml:"reason"`
	SubnetID            string               `xml:"subnetId,omitempty"`
	Tags                []Tag                `xml:"tagSet>item"`
	UsageOperation      string               `xml:"usageOperation"`
	UsageUpdate         wire.Time            `xml:"usageOperationUpdateTime"`
	VirtualizationType  string               `xml:"virtualizationType"`
	VpcID               string               `xml:"vpcId,omitempty"`
}

type attachedDevice struct {
	DeviceName string      `xml:"deviceName"`
	Ebs        attachedEbs `xml:"ebs"`
}

type attachedEbs struct {
	AttachTime          wire.Time `xml:"attachTime"`
	DeleteOnTermination bool      `xml:"deleteOnTermination"`
	Status              string    `xml:"status"`
	VolumeID            string    `xml:"volumeId"`
}

type profileXML struct {
	ARN string `xml:"arn"`
	ID  string `xml:"id"`
}

type maintenanceXML struct {
	AutoRecovery    string `xml:"autoRecovery"`
	RebootMigration string `xml:"rebootMigration"`
}

// metadataXML is the metadata options and their state, which is always "applied".
type metadataXML struct {
	metadataOptions
	State string `xml:"state"`
}

type stateOnly struct {
	State string `xml:"state"`
}

func (s *Service) reservationXML(r *reservation, instances []*instance) reservationXML {
	out := reservationXML{OwnerID: s.cfg.Account, RequesterID: r.requester, ID: r.id}
	for _, i := range instances {
		out.Instances = append(out.Instances, s.instanceXML(i))
	}
	return out
}

func (s *Service) instanceXML(i *instance) instanceXML {
	d := &i.data
	out := instanceXML{
		AmiLaunchIndex: i.index, Architecture: i.kind.arch, BootMode: i.image.ami.BootMode,
		CapacityReservation: d.CapacityReservationSpecification, ClientToken: i.token,
		CPUOptions:      cpuOptions{CoreCount: ptr(int32(i.kind.cores())), ThreadsPerCore: ptr(int32(i.kind.threads))},
		CurrentBootMode: "uefi",
		EbsOptimized:    value(d.EbsOptimized), EnaSupport: true, Enclave: enclaveOptions{
			Enabled: ptr(d.EnclaveOptions != nil && value(d.EnclaveOptions.Enabled))},
		Hibernation: hibernationOptions{Configured: ptr(d.HibernationOptions != nil &&
			value(d.HibernationOptions.Configured))}, Hypervisor: "xen", ImageID: i.image.id,
		ID: i.id, Type: i.kind.name, KeyName: value(d.KeyName), LaunchTime: wire.Time{Time: i.launched},
		Maintenance: maintenanceXML{AutoRecovery: "default", RebootMigration: "default"},
		Metadata:    metadataXML{metadataOptions: *d.MetadataOptions, State: "applied"},
		Monitoring:  stateOnly{State: "disabled"}, Performance: d.NetworkPerformanceOptions,
		PlatformDetails: "Linux/UNIX", PrivateDNSName: i.privateName,
		RootDeviceName: i.image.ami.RootDevice, RootDeviceType: "ebs", State: stateOf(i.state), StateReason: i.reason,
		Transition: i.transition, Tags: s.tagList(i.id),
		UsageOperation: "RunInstances", UsageUpdate: wire.Time{Time: i.created}, VirtualizationType: "hvm",
	}
	out.Placement = placement{AvailabilityZone: ptr(i.zone), GroupName: ptr(""), Tenancy: ptr(i.tenancy())}
	if p := d.Placement; p != nil {
		out.Placement = replaceFields(out.Placement, *p)
		out.Placement.AvailabilityZone = ptr(i.zone)
	}
	if out.CapacityReservation == nil {
		out.CapacityReservation = &capacityReservation{CapacityReservationPreference: ptr("open")}
	}
	if o := d.CPUOptions; o != nil {
		out.CPUOptions = replaceFields(out.CPUOptions, *o)
	}
	if d.MaintenanceOptions != nil {
		out.Maintenance.AutoRecovery = orElse(d.MaintenanceOptions.AutoRecovery, "default")
	}
	if d.Monitoring != nil && value(d.Monitoring.Enabled) {
		out.Monitoring.State = "enabled"
	}
	if i.profile != nil && i.state != stateTerminated {
		out.Profile = &profileXML{ARN: i.profile.ARN, ID: i.profile.ID}
	}
	if i.spot != nil {
		out.Lifecycle, out.SpotRequestID = "spot", i.spot.id
	}
	for _, id := range i.volumes {
		v := s.volumes[id]
		if v == nil {
			continue
		}
		out.BlockDevices = append(out.BlockDevices, attachedDevice{DeviceName: v.device, Ebs: attachedEbs{
			AttachTime: wire.Time{Time: v.attached}, DeleteOnTermination: !v.keep, Status: "attached", VolumeID: v.id,
		}})
	}
	if i.state == stateTerminated { // its network is gone, so answers omit it
		out.PrivateDNSName = ""
		return out
	}
	s.networkOf(i, &out)
	return out
}

func (s *Service) describeInstances(c *wire.Call) (any, error) {
	var in struct {
		DryRun     bool
		Filter     []Filter
		InstanceID []string `query:"InstanceId"`
		MaxResults int
		NextToken  string
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
	for _, id := range in.InstanceID {
		if _, err := s.instanceByID(id); err != nil {
			return nil, err
		}
	}
	found, next, err := find(s, s.instances, query{in.InstanceID, in.Filter, in.MaxResults, in.NextToken},
		s.instanceFilters())
	if err != nil {
		return nil, err
	}
	var out struct {
		Reservations []reservationXML `xml:"reservationSet>item"`
		NextToken    string           `xml:"nextToken,omitempty"`
	}
	// Group the instances by their reservations.
	for len(found) > 0 {
		r := found[0].reservation
		same := slices.DeleteFunc(slices.Clone(found), func(i *instance) bool { return i.reservation != r })
		found = slices.DeleteFunc(found, func(i *instance) bool { return i.reservation == r })
		out.Reservations = append(out.Reservations, s.reservationXML(r, same))
	}
	out.NextToken = next
	return out, nil
}

// instanceTextFilters are the filters of DescribeInstances for properties that have one value.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html
var instanceTextFilters = map[string]func(x instanceXML) string{
	"architecture":                        func(x instanceXML) string { return x.Architecture },
	"availability-zone":                   func(x instanceXML) string { return value(x.Placement.AvailabilityZone) },
	"boot-mode":                           func(x instanceXML) string { return x.BootMode },
	"client-token":                        func(x instanceXML) string { return x.ClientToken },
	"dns-name":                            func(x instanceXML) string { return x.PublicDNSName },
	"ebs-optimized":                       func(x instanceXML) string { return strconv.FormatBool(x.EbsOptimized) },
	"ena-support":                         func(instanceXML) string { return "true" },
	"enclave-options.enabled":             func(x instanceXML) string { return boolText(x.Enclave.Enabled) },
	"hibernation-options.configured":      func(x instanceXML) string { return boolText(x.Hibernation.Configured) },
	"hypervisor":                          func(x instanceXML) string { return x.Hypervisor },
	"image-id":                            func(x instanceXML) string { return x.ImageID },
	"instance-id":                         func(x instanceXML) string { return x.ID },
	"instance-lifecycle":                  func(x instanceXML) string { return x.Lifecycle },
	"instance-state-code":                 func(x instanceXML) string { return strconv.Itoa(x.State.Code) },
	"instance-state-name":                 func(x instanceXML) string { return x.State.Name },
	"instance-type":                       func(x instanceXML) string { return x.Type },
	"ip-address":                          func(x instanceXML) string { return x.PublicIP },
	"ipv6-address":                        func(x instanceXML) string { return x.Ipv6Address },
	"key-name":                            func(x instanceXML) string { return x.KeyName },
	"launch-index":                        func(x instanceXML) string { return strconv.Itoa(x.AmiLaunchIndex) },
	"launch-time":                         func(x instanceXML) string { return timestamp(x.LaunchTime.Time) },
	"maintenance-options.auto-recovery":   func(x instanceXML) string { return x.Maintenance.AutoRecovery },
	"metadata-options.http-endpoint":      func(x instanceXML) string { return value(x.Metadata.HTTPEndpoint) },
	"metadata-options.http-protocol-ipv6": func(x instanceXML) string { return value(x.Metadata.HTTPProtocolIpv6) },
	"metadata-options.http-put-response-hop-limit": func(x instanceXML) string {
		return fmt.Sprint(value(x.Metadata.HTTPPutResponseHopLimit))
	},
	"metadata-options.http-tokens": func(x instanceXML) string { return value(x.Metadata.HTTPTokens) },
	"metadata-options.instance-metadata-tags": func(x instanceXML) string {
		return value(x.Metadata.InstanceMetadataTags)
	},
	"metadata-options.state":   func(x instanceXML) string { return x.Metadata.State },
	"monitoring-state":         func(x instanceXML) string { return x.Monitoring.State },
	"platform-details":         func(x instanceXML) string { return x.PlatformDetails },
	"platform":                 func(instanceXML) string { return "" }, // Windows only
	"private-dns-name":         func(x instanceXML) string { return x.PrivateDNSName },
	"private-ip-address":       func(x instanceXML) string { return x.PrivateIP },
	"reason":                   func(x instanceXML) string { return x.Transition },
	"root-device-name":         func(x instanceXML) string { return x.RootDeviceName },
	"root-device-type":         func(x instanceXML) string { return x.RootDeviceType },
	"source-dest-check":        func(x instanceXML) string { return boolText(x.SourceDestCheck) },
	"spot-instance-request-id": func(x instanceXML) string { return x.SpotRequestID },
	"subnet-id":                func(x instanceXML) string { return x.SubnetID },
	"tenancy":                  func(x instanceXML) string { return value(x.Placement.Tenancy) },
	"placement-group-name":     func(x instanceXML) string { return value(x.Placement.GroupName) },
	"usage-operation":          func(x instanceXML) string { return x.UsageOperation },
	"virtualization-type":      func(x instanceXML) string { return x.VirtualizationType },
	"vpc-id":                   func(x instanceXML) string { return x.VpcID },
	"iam-instance-profile.arn": func(x instanceXML) string {
		if x.Profile == nil {
			return ""
		}
		return x.Profile.ARN
	},
	"iam-instance-profile.id": func(x instanceXML) string {
		if x.Profile == nil {
			return ""
		}
		return x.Profile.ID
	},
	"state-reason-code":    func(x instanceXML) string { return value(x.StateReason).Code },
	"state-reason-message": func(x instanceXML) string { return value(x.StateReason).Message },
}

// instanceListFilters are the filters that use several values.
var instanceListFilters = map[string]func(x instanceXML) []string{
	"block-device-mapping.device-name": devices(func(d attachedDevice) string { return d.DeviceName }),
	"block-device-mapping.volume-id":   devices(func(d attachedDevice) string { return d.Ebs.VolumeID }),
	"block-device-mapping.status":      devices(func(d attachedDevice) string { return d.Ebs.Status }),
	"block-device-mapping.attach-time": devices(func(d attachedDevice) string {
		return timestamp(d.Ebs.AttachTime.Time)
	}),
	"block-device-mapping.delete-on-termination": devices(func(d attachedDevice) string {
		return strconv.FormatBool(d.Ebs.DeleteOnTermination)
	}),
	"instance.group-id":   groupsOf(func(g groupRefXML) string { return g.ID }),
	"instance.group-name": groupsOf(func(g groupRefXML) string { return g.Name }),
}

func devices(one func(attachedDevice) string) func(instanceXML) []string {
	return func(x instanceXML) []string {
		var all []string
		for _, d := range x.BlockDevices {
			all = append(all, one(d))
		}
		return all
	}
}

func groupsOf(one func(groupRefXML) string) func(instanceXML) []string {
	return func(x instanceXML) []string {
		var all []string
		for _, g := range x.Groups {
			all = append(all, one(g))
		}
		return all
	}
}

// instanceFilters returns all filters of DescribeInstances.
func (s *Service) instanceFilters() map[string]func(*instance) []string {
	all := through(s.instanceXML, instanceListFilters)
	for name, text := range instanceTextFilters {
		all[name] = func(i *instance) []string { return one(text)(s.instanceXML(i)) }
	}
	maps.Copy(all, through(s.instanceXML, interfacesFilters()))
	all["owner-id"] = func(*instance) []string { return []string{s.cfg.Account} }
	all["reservation-id"] = one(func(i *instance) string { return i.reservation.id })
	all["requester-id"] = one(func(i *instance) string { return i.reservation.requester })
	return all
}
