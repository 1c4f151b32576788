package ec2

// launchData holds the common parameters of RunInstances and launch templates. Requests of both kinds are decoded into
// it. Answers about a template are encoded from it, so they contain exactly what was stored.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RequestLaunchTemplateData.html
type launchData struct {
	BlockDeviceMapping                []blockDevice          `query:"BlockDeviceMapping" xml:"blockDeviceMappingSet>item"`
	CapacityReservationSpecification  *capacityReservation   `xml:"capacityReservationSpecification"`
	CPUOptions                        *cpuOptions            `query:"CpuOptions" xml:"cpuOptions"`
	CreditSpecification               *creditSpecification   `xml:"creditSpecification"`
	DisableAPIStop                    *bool                  `query:"DisableApiStop" xml:"disableApiStop"`
	DisableAPITermination             *bool                  `query:"DisableApiTermination" xml:"disableApiTermination"`
	EbsOptimized                      *bool                  `xml:"ebsOptimized"`
	EnclaveOptions                    *enclaveOptions        `xml:"enclaveOptions"`
	HibernationOptions                *hibernationOptions    `xml:"hibernationOptions"`
	IamInstanceProfile                *profileSpecification  `xml:"iamInstanceProfile"`
	ImageID                           *string                `query:"ImageId" xml:"imageId"`
	InstanceInitiatedShutdownBehavior *string                `xml:"instanceInitiatedShutdownBehavior"`
	InstanceMarketOptions             *marketOptions         `xml:"instanceMarketOptions"`
	InstanceType                      *string                `xml:"instanceType"`
	KernelID                          *string                `query:"KernelId" xml:"kernelId"`
	KeyName                           *string                `xml:"keyName"`
	LicenseSpecification              []licenseSpecification `query:"LicenseSpecification" xml:"licenseSet>item"`
	MaintenanceOptions                *maintenanceOptions    `xml:"maintenanceOptions"`
	MetadataOptions                   *metadataOptions       `xml:"metadataOptions"`
	Monitoring                        *monitoringOptions     `xml:"monitoring"`
	NetworkInterface                  []launchInterface      `query:"NetworkInterface" xml:"networkInterfaceSet>item"`
	NetworkPerformanceOptions         *performanceOptions    `xml:"networkPerformanceOptions"`
	Placement                         *placement             `xml:"placement"`
	PrivateDNSNameOptions             *nameOptions           `query:"PrivateDnsNameOptions" xml:"privateDnsNameOptions"`
	SecurityGroupID                   []string               `query:"SecurityGroupId" xml:"securityGroupIdSet>item"`
	SecurityGroup                     []string               `query:"SecurityGroup" xml:"securityGroupSet>item"`
	TagSpecification                  []launchTags           `query:"TagSpecification" xml:"tagSpecificationSet>item"`
	UserData                          *string                `xml:"userData"`
}

// templateData is the content of a launch template.
type templateData struct {
	launchData
	InstanceRequirements *instanceRequirements `xml:"instanceRequirements"`
	RAMDiskID            *string               `query:"RamDiskId" xml:"ramDiskId"`
}

type blockDevice struct {
	DeviceName  *string    `xml:"deviceName"`
	Ebs         *ebsDevice `xml:"ebs"`
	NoDevice    *string    `xml:"noDevice"`
	VirtualName *string    `xml:"virtualName"`
}

type ebsDevice struct {
	DeleteOnTermination      *bool   `xml:"deleteOnTermination"`
	Encrypted                *bool   `xml:"encrypted"`
	Iops                     *int32  `xml:"iops"`
	KmsKeyID                 *string `query:"KmsKeyId" xml:"kmsKeyId"`
	SnapshotID               *string `query:"SnapshotId" xml:"snapshotId"`
	Throughput               *int32  `xml:"throughput"`
	VolumeInitializationRate *int32  `xml:"volumeInitializationRate"`
	VolumeSize               *int32  `xml:"volumeSize"`
	VolumeType               *string `xml:"volumeType"`
}

type capacityReservation struct {
	CapacityReservationPreference *string                    `xml:"capacityReservationPreference"`
	CapacityReservationTarget     *capacityReservationTarget `xml:"capacityReservationTarget"`
}

// reservation returns the capacity reservation that a launch targets, or nil.
func (d *launchData) reservation() *capacityReservationTarget {
	if d.CapacityReservationSpecification == nil {
		return nil
	}
	return d.CapacityReservationSpecification.CapacityReservationTarget
}

type capacityReservationTarget struct {
	CapacityReservationID               *string `query:"CapacityReservationId" xml:"capacityReservationId"`
	CapacityReservationResourceGroupARN *string `query:"CapacityReservationResourceGroupArn" xml:"capacityReservationResourceGroupArn"`
}

type cpuOptions struct {
	AmdSevSnp            *string `xml:"amdSevSnp"`
	CoreCount            *int32  `xml:"coreCount"`
	NestedVirtualization *string `xml:"nestedVirtualization"`
	ThreadsPerCore       *int32  `xml:"threadsPerCore"`
}

type creditSpecification struct {
	CPUCredits *string `query:"CpuCredits" xml:"cpuCredits"`
}

type enclaveOptions struct {
	Enabled *bool `xml:"enabled"`
}

type hibernationOptions struct {
	Configured *bool `xml:"configured"`
}

type profileSpecification struct {
	ARN  *string `query:"Arn" xml:"arn"`
	Name *string `xml:"name"`
}

type marketOptions struct {
	MarketType  *string      `xml:"marketType"`
	SpotOptions *spotOptions `xml:"spotOptions"`
}

type spotOptions struct {
	BlockDurationMinutes         *int32  `xml:"blockDurationMinutes"`
	InstanceInterruptionBehavior *string `xml:"instanceInterruptionBehavior"`
	MaxPrice                     *string `xml:"maxPrice"`
	SpotInstanceType             *string `xml:"spotInstanceType"`
	ValidUntil                   *string `xml:"validUntil"`
}

type licenseSpecification struct {
	LicenseConfigurationARN *string `query:"LicenseConfigurationArn" xml:"licenseConfigurationArn"`
}

type maintenanceOptions struct {
	AutoRecovery *string `xml:"autoRecovery"`
}

type metadataOptions struct {
	HTTPEndpoint            *string `query:"HttpEndpoint" xml:"httpEndpoint"`
	HTTPProtocolIpv6        *string `query:"HttpProtocolIpv6" xml:"httpProtocolIpv6"`
	HTTPPutResponseHopLimit *int32  `query:"HttpPutResponseHopLimit" xml:"httpPutResponseHopLimit"`
	HTTPTokens              *string `query:"HttpTokens" xml:"httpTokens"`
	InstanceMetadataTags    *string `xml:"instanceMetadataTags"`
}

type monitoringOptions struct {
	Enabled *bool `xml:"enabled"`
}

type launchInterface struct {
	AssociateCarrierIPAddress       *bool               `query:"AssociateCarrierIpAddress" xml:"associateCarrierIpAddress"`
	AssociatePublicIPAddress        *bool               `query:"AssociatePublicIpAddress" xml:"associatePublicIpAddress"`
	ConnectionTrackingSpecification *connectionTracking `xml:"connectionTrackingSpecification"`
	DeleteOnTermination             *bool               `xml:"deleteOnTermination"`
	Description                     *string             `xml:"description"`
	DeviceIndex                     *int32              `xml:"deviceIndex"`
	SecurityGroupID                 []string            `query:"SecurityGroupId" xml:"groupSet>groupId"`
	InterfaceType                   *string             `xml:"interfaceType"`
	Ipv4PrefixCount                 *int32              `xml:"ipv4PrefixCount"`
	Ipv4Prefix                      []ipv4Prefix        `query:"Ipv4Prefix" xml:"ipv4PrefixSet>item"`
	Ipv6AddressCount                *int32              `xml:"ipv6AddressCount"`
	Ipv6Addresses                   []ipv6Address       `query:"Ipv6Addresses" xml:"ipv6AddressesSet>item"`
	Ipv6PrefixCount                 *int32              `xml:"ipv6PrefixCount"`
	Ipv6Prefix                      []ipv6Prefix        `query:"Ipv6Prefix" xml:"ipv6PrefixSet>item"`
	NetworkCardIndex                *int32              `xml:"networkCardIndex"`
	NetworkInterfaceID              *string             `query:"NetworkInterfaceId" xml:"networkInterfaceId"`
	PrimaryIpv6                     *bool               `xml:"primaryIpv6"`
	PrivateIPAddress                *string             `query:"PrivateIpAddress" xml:"privateIpAddress"`
	PrivateIPAddresses              []privateAddress    `query:"PrivateIpAddresses" xml:"privateIpAddressesSet>item"`
	SecondaryPrivateIPAddressCount  *int32              `query:"SecondaryPrivateIpAddressCount" xml:"secondaryPrivateIpAddressCount"`
	SubnetID                        *string             `query:"SubnetId" xml:"subnetId"`
}

type connectionTracking struct {
	TCPEstablishedTimeout *int32 `query:"TcpEstablishedTimeout" xml:"tcpEstablishedTimeout"`
	UDPStreamTimeout      *int32 `query:"UdpStreamTimeout" xml:"udpStreamTimeout"`
	UDPTimeout            *int32 `query:"UdpTimeout" xml:"udpTimeout"`
}

type ipv4Prefix struct {
	Ipv4Prefix *string `xml:"ipv4Prefix"`
}

type ipv6Prefix struct {
	Ipv6Prefix *string `xml:"ipv6Prefix"`
}

type ipv6Address struct {
	Ipv6Address   *string `xml:"ipv6Address"`
	IsPrimaryIpv6 *bool   `xml:"isPrimaryIpv6"`
}

type privateAddress struct {
	Primary          *bool   `xml:"primary"`
	PrivateIPAddress *string `query:"PrivateIpAddress" xml:"privateIpAddress"`
}

type performanceOptions struct {
	BandwidthWeighting *string `xml:"bandwidthWeighting"`
}

type placement struct {
	Affinity             *string `xml:"affinity"`
	AvailabilityZone     *string `xml:"availabilityZone"`
	AvailabilityZoneID   *string `query:"AvailabilityZoneId" xml:"availabilityZoneId"`
	GroupID              *string `query:"GroupId" xml:"groupId"`
	GroupName            *string `xml:"groupName"`
	HostID               *string `query:"HostId" xml:"hostId"`
	HostResourceGroupARN *string `query:"HostResourceGroupArn" xml:"hostResourceGroupArn"`
	PartitionNumber      *int32  `xml:"partitionNumber"`
	SpreadDomain         *string `xml:"spreadDomain"`
	Tenancy              *string `xml:"tenancy"`
}

type nameOptions struct {
	EnableResourceNameDNSAAAARecord *bool   `query:"EnableResourceNameDnsAAAARecord" xml:"enableResourceNameDnsAAAARecord"`
	EnableResourceNameDNSARecord    *bool   `query:"EnableResourceNameDnsARecord" xml:"enableResourceNameDnsARecord"`
	HostnameType                    *string `xml:"hostnameType"`
}

// launchTags holds the tags that a launch gives to new resources of one type.
type launchTags struct {
	ResourceType string `xml:"resourceType"`
	Tag          []Tag  `xml:"tagSet>item"`
}

// instanceRequirements describes, by attributes, the instance types that a launch may use. The fake stores and returns
// the requirements, but refuses a launch for which it must choose an instance type.
type instanceRequirements struct {
	AcceleratorCount                               *numberRange    `xml:"acceleratorCount"`
	AcceleratorManufacturer                        []string        `query:"AcceleratorManufacturer" xml:"acceleratorManufacturerSet>item"`
	AcceleratorName                                []string        `query:"AcceleratorName" xml:"acceleratorNameSet>item"`
	AcceleratorTotalMemoryMiB                      *numberRange    `xml:"acceleratorTotalMemoryMiB"`
	AcceleratorType                                []string        `query:"AcceleratorType" xml:"acceleratorTypeSet>item"`
	AllowedInstanceType                            []string        `query:"AllowedInstanceType" xml:"allowedInstanceTypeSet>item"`
	BareMetal                                      *string         `xml:"bareMetal"`
	BaselineEbsBandwidthMbps                       *numberRange    `xml:"baselineEbsBandwidthMbps"`
	BurstablePerformance                           *string         `xml:"burstablePerformance"`
	CPUManufacturer                                []string        `query:"CpuManufacturer" xml:"cpuManufacturerSet>item"`
	ExcludedInstanceType                           []string        `query:"ExcludedInstanceType" xml:"excludedInstanceTypeSet>item"`
	InstanceGeneration                             []string        `query:"InstanceGeneration" xml:"instanceGenerationSet>item"`
	LocalStorage                                   *string         `xml:"localStorage"`
	LocalStorageType                               []string        `query:"LocalStorageType" xml:"localStorageTypeSet>item"`
	MaxSpotPriceAsPercentageOfOptimalOnDemandPrice *int32          `xml:"maxSpotPriceAsPercentageOfOptimalOnDemandPrice"`
	MemoryGiBPerVCPU                               *fractionsRange `query:"MemoryGiBPerVCpu" xml:"memoryGiBPerVCpu"`
	MemoryMiB                                      *numberRange    `xml:"memoryMiB"`
	NetworkBandwidthGbps                           *fractionsRange `xml:"networkBandwidthGbps"`
	NetworkInterfaceCount                          *numberRange    `xml:"networkInterfaceCount"`
	OnDemandMaxPricePercentageOverLowestPrice      *int32          `xml:"onDemandMaxPricePercentageOverLowestPrice"`
	RequireHibernateSupport                        *bool           `xml:"requireHibernateSupport"`
	SpotMaxPricePercentageOverLowestPrice          *int32          `xml:"spotMaxPricePercentageOverLowestPrice"`
	TotalLocalStorageGB                            *fractionsRange `xml:"totalLocalStorageGB"`
	VCPUCount                                      *numberRange    `query:"VCpuCount" xml:"vCpuCount"`
}

type numberRange struct {
	Max *int32 `xml:"max"`
	Min *int32 `xml:"min"`
}

// fractionsRange keeps floating-point numbers as text.
type fractionsRange struct {
	Max *string `xml:"max"`
	Min *string `xml:"min"`
}
