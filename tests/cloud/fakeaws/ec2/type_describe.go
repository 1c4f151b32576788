package ec2

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type instanceTypeXML struct {
	AutoRecoverySupported         bool          `xml:"autoRecoverySupported"`
	BareMetal                     bool          `xml:"bareMetal"`
	BurstablePerformanceSupported bool          `xml:"burstablePerformanceSupported"`
	CurrentGeneration             bool          `xml:"currentGeneration"`
	DedicatedHostsSupported       bool          `xml:"dedicatedHostsSupported"`
	EbsInfo                       ebsInfoXML    `xml:"ebsInfo"`
	FreeTierEligible              bool          `xml:"freeTierEligible"`
	HibernationSupported          bool          `xml:"hibernationSupported"`
	Hypervisor                    string        `xml:"hypervisor"`
	InstanceStorageSupported      bool          `xml:"instanceStorageSupported"`
	InstanceType                  string        `xml:"instanceType"`
	MemoryMiB                     int           `xml:"memoryInfo>sizeInMiB"`
	NetworkInfo                   typeNetwork   `xml:"networkInfo"`
	NitroEnclavesSupport          string        `xml:"nitroEnclavesSupport"`
	NitroTpmSupport               string        `xml:"nitroTpmSupport"`
	PlacementStrategies           []string      `xml:"placementGroupInfo>supportedStrategies>item"`
	ProcessorInfo                 processorInfo `xml:"processorInfo"`
	BootModes                     []string      `xml:"supportedBootModes>item"`
	RootDeviceTypes               []string      `xml:"supportedRootDeviceTypes>item"`
	UsageClasses                  []string      `xml:"supportedUsageClasses>item"`
	VirtualizationTypes           []string      `xml:"supportedVirtualizationTypes>item"`
	VCPUInfo                      vcpuInfo      `xml:"vCpuInfo"`
}

type ebsInfoXML struct {
	EbsOptimizedSupport string `xml:"ebsOptimizedSupport"`
	EncryptionSupport   string `xml:"encryptionSupport"`
	NvmeSupport         string `xml:"nvmeSupport"`
}

type typeNetwork struct {
	DefaultNetworkCardIndex   int    `xml:"defaultNetworkCardIndex"`
	EfaSupported              bool   `xml:"efaSupported"`
	EnaSupport                string `xml:"enaSupport"`
	Ipv4AddressesPerInterface int    `xml:"ipv4AddressesPerInterface"`
	Ipv6AddressesPerInterface int    `xml:"ipv6AddressesPerInterface"`
	Ipv6Supported             bool   `xml:"ipv6Supported"`
	MaximumNetworkCards       int    `xml:"maximumNetworkCards"`
	MaximumNetworkInterfaces  int    `xml:"maximumNetworkInterfaces"`
	NetworkPerformance        string `xml:"networkPerformance"`
}

type processorInfo struct {
	Architectures []string `xml:"supportedArchitectures>item"`
	Manufacturer  string   `xml:"manufacturer"`
	Clock         float64  `xml:"sustainedClockSpeedInGhz"`
}

type vcpuInfo struct {
	DefaultCores          int   `xml:"defaultCores"`
	DefaultThreadsPerCore int   `xml:"defaultThreadsPerCore"`
	DefaultVCPUs          int   `xml:"defaultVCpus"`
	ValidThreadsPerCore   []int `xml:"validThreadsPerCore>item"`
}

func (t *instanceType) xml() instanceTypeXML {
	nitro := t.hypervisor == "nitro"
	support := func(yes bool) string {
		if yes {
			return "supported"
		}
		return "unsupported"
	}
	out := instanceTypeXML{
		AutoRecoverySupported: true, BurstablePerformanceSupported: t.burstable, CurrentGeneration: true,
		DedicatedHostsSupported: !t.burstable,
		EbsInfo: ebsInfoXML{EbsOptimizedSupport: "default", EncryptionSupport: "supported",
			NvmeSupport: "required"},
		FreeTierEligible: t.name == "t2.micro" || t.name == "t3.micro", HibernationSupported: t.manufacturer == "Intel",
		Hypervisor: t.hypervisor, InstanceType: t.name,
		MemoryMiB: t.memory, NitroEnclavesSupport: support(!t.burstable && t.vcpus >= 4),
		NitroTpmSupport: support(nitro),
		NetworkInfo: typeNetwork{
			EnaSupport: "required", Ipv4AddressesPerInterface: t.addresses, Ipv6AddressesPerInterface: t.addresses,
			Ipv6Supported: true, MaximumNetworkCards: 1,
			MaximumNetworkInterfaces: t.interfaces, NetworkPerformance: t.network,
		},
		PlacementStrategies: []string{"cluster", "partition", "spread"}, BootModes: []string{"legacy-bios", "uefi"},
		RootDeviceTypes: []string{"ebs"},
		ProcessorInfo:   processorInfo{Architectures: []string{t.arch}, Manufacturer: t.manufacturer, Clock: t.clock},
		UsageClasses:    []string{"on-demand", "spot"}, VirtualizationTypes: []string{"hvm"},
		VCPUInfo: vcpuInfo{DefaultCores: t.cores(), DefaultThreadsPerCore: t.threads, DefaultVCPUs: t.vcpus,
			ValidThreadsPerCore: []int{1}},
	}
	if t.threads == 2 {
		out.VCPUInfo.ValidThreadsPerCore = []int{1, 2}
	}
	if t.burstable {
		out.PlacementStrategies = []string{"partition", "spread"}
	}
	if t.arch == archARM64 {
		out.BootModes = []string{"uefi"}
	}
	if !nitro {
		out.EbsInfo, out.NetworkInfo.EnaSupport = ebsInfoXML{EbsOptimizedSupport: "unsupported",
			EncryptionSupport: "supported", NvmeSupport: "unsupported"}, "unsupported"
	}
	return out
}

// typeFilters are the filters of DescribeInstanceTypes that tell types of the table apart.
var typeFilters = map[string]func(instanceTypeXML) []string{
	"auto-recovery-supported": func(t instanceTypeXML) []string {
		return []string{strconv.FormatBool(t.AutoRecoverySupported)}
	},
	"bare-metal": func(t instanceTypeXML) []string {
		return []string{strconv.FormatBool(t.BareMetal)}
	},
	"burstable-performance-supported": func(t instanceTypeXML) []string {
		return []string{strconv.FormatBool(t.BurstablePerformanceSupported)}
	},
	"current-generation": func(t instanceTypeXML) []string {
		return []string{strconv.FormatBool(t.CurrentGeneration)}
	},
	"ebs-info.nvme-support": func(t instanceTypeXML) []string { return []string{t.EbsInfo.NvmeSupport} },
	"free-tier-eligible": func(t instanceTypeXML) []string {
		return []string{strconv.FormatBool(t.FreeTierEligible)}
	},
	"hibernation-supported": func(t instanceTypeXML) []string {
		return []string{strconv.FormatBool(t.HibernationSupported)}
	},
	"hypervisor": func(t instanceTypeXML) []string { return []string{t.Hypervisor} },
	"instance-storage-supported": func(t instanceTypeXML) []string {
		return []string{strconv.FormatBool(t.InstanceStorageSupported)}
	},
	"instance-type":           func(t instanceTypeXML) []string { return []string{t.InstanceType} },
	"memory-info.size-in-mib": func(t instanceTypeXML) []string { return []string{strconv.Itoa(t.MemoryMiB)} },
	"network-info.maximum-network-interfaces": func(t instanceTypeXML) []string {
		return []string{strconv.Itoa(t.NetworkInfo.MaximumNetworkInterfaces)}
	},
	"network-info.ipv6-supported": func(t instanceTypeXML) []string {
		return []string{strconv.FormatBool(t.NetworkInfo.Ipv6Supported)}
	},
	"processor-info.supported-architecture": func(t instanceTypeXML) []string { return t.ProcessorInfo.Architectures },
	"supported-boot-mode":                   func(t instanceTypeXML) []string { return t.BootModes },
	"supported-root-device-type":            func(t instanceTypeXML) []string { return t.RootDeviceTypes },
	"supported-usage-class":                 func(t instanceTypeXML) []string { return t.UsageClasses },
	"supported-virtualization-type":         func(t instanceTypeXML) []string { return t.VirtualizationTypes },
	"vcpu-info.default-cores": func(t instanceTypeXML) []string {
		return []string{strconv.Itoa(t.VCPUInfo.DefaultCores)}
	},
	"vcpu-info.default-vcpus": func(t instanceTypeXML) []string {
		return []string{strconv.Itoa(t.VCPUInfo.DefaultVCPUs)}
	},
	"vcpu-info.default-threads-per-core": func(t instanceTypeXML) []string {
		return []string{strconv.Itoa(t.VCPUInfo.DefaultThreadsPerCore)}
	},
}

func (s *Service) describeInstanceTypes(c *wire.Call) (any, error) {
	var in struct {
		DryRun                     bool
		Filter                     []Filter
		IncludeUnsupportedInRegion bool
		InstanceType               []string
		MaxResults                 int
		NextToken                  string
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
	var unknown []string
	for _, name := range in.InstanceType {
		if s.types[name] == nil {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return nil, failf("InvalidInstanceType", "The following supplied instance types do not exist: %v", unknown)
	}
	if in.MaxResults > 100 {
		return nil,
			failf("InvalidParameterValue",
				"Value ( %d ) for parameter maxResults is invalid. Expecting a value less than or equal to 100.",
				in.MaxResults)
	}
	if in.MaxResults == 0 {
		in.MaxResults = 100
	}
	var items []instanceTypeXML
	for _, t := range s.sortedTypes() {
		if len(in.InstanceType) > 0 && !slices.Contains(in.InstanceType, t.name) {
			continue
		}
		x := t.xml()
		match, err := matches(in.Filter, nil, func(name string) ([]string, bool) {
			f, known := typeFilters[name]
			if !known {
				return nil, false
			}
			return f(x), true
		})
		if err != nil {
			return nil, err
		}
		if match {
			items = append(items, x)
		}
	}
	page, next, err := paged(items, in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Types     []instanceTypeXML `xml:"instanceTypeSet>item"`
		NextToken string            `xml:"nextToken,omitempty"`
	}{page, next}, nil
}

type offeringXML struct {
	InstanceType string `xml:"instanceType"`
	Location     string `xml:"location"`
	LocationType string `xml:"locationType"`
}

func (s *Service) describeInstanceTypeOfferings(c *wire.Call) (any, error) {
	var in struct {
		DryRun       bool
		Filter       []Filter
		LocationType string
		MaxResults   int
		NextToken    string
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
	var items []offeringXML
	for _, t := range s.sortedTypes() {
		switch in.LocationType {
		case "", "region":
			if slices.ContainsFunc(s.cfg.Zones, func(zone string) bool { return s.offered(t.name, zone) }) {
				items = append(items, offeringXML{t.name, s.cfg.Region, "region"})
			}
		case "availability-zone", "availability-zone-id":
			for _, zone := range s.cfg.Zones {
				location := zone
				if in.LocationType == "availability-zone-id" {
					location = s.zoneID(zone)
				}
				if s.offered(t.name, zone) {
					items = append(items, offeringXML{t.name, location, in.LocationType})
				}
			}
		default:
			return nil, invalid("locationType", in.LocationType)
		}
	}
	var found []offeringXML
	for _, o := range items {
		match, err := matches(in.Filter, nil, func(name string) ([]string, bool) {
			switch name {
			case "instance-type":
				return []string{o.InstanceType}, true
			case "location":
				return []string{o.Location}, true
			}
			return nil, false
		})
		if err != nil {
			return nil, err
		}
		if match {
			found = append(found, o)
		}
	}
	page, next, err := paged(found, in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Offerings []offeringXML `xml:"instanceTypeOfferingSet>item"`
		NextToken string        `xml:"nextToken,omitempty"`
	}{page, next}, nil
}

// offered tells whether a zone has a type at all.
func (s *Service) offered(instanceType, zone string) bool {
	return !s.withoutType[instanceType+" "+zone]
}

// WithoutType takes a type out of a zone's offer. It takes the cloud's lock.
func (s *Service) WithoutType(instanceType, zone string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withoutType[instanceType+" "+zone] = true
}

// SetLimits sets the account's quotas: virtual CPUs of running on-demand instances, and spot instances. Zero is no
// limit. It takes the cloud's lock.
func (s *Service) SetLimits(vcpus, spot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vcpuLimit, s.spotLimit = vcpus, spot
}

// unsupportedType is the error of a launch of a type in a zone that does not have it.
func (s *Service) unsupportedType(instanceType, zone string) error {
	var elsewhere []string
	for _, z := range s.cfg.Zones {
		if s.offered(instanceType, z) {
			elsewhere = append(elsewhere, z)
		}
	}
	return failf("Unsupported",
		"Your requested instance type (%s) is not supported in your requested Availability Zone (%s). Please retry "+
			"your request by not specifying an "+
			"Availability Zone or choosing %s.", instanceType, zone, fmt.Sprint(elsewhere))
}
