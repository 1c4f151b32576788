package ec2

import (
	"encoding/base64"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type textValue struct {
	Value string `xml:"value,omitempty"`
}

type boolValue struct {
	Value bool `xml:"value"`
}

type attributeXML struct {
	BlockDevices      []attachedDevice `xml:"blockDeviceMapping>item"`
	DisableAPIStop    *boolValue       `xml:"disableApiStop"`
	DisableAPITermin  *boolValue       `xml:"disableApiTermination"`
	EbsOptimized      *boolValue       `xml:"ebsOptimized"`
	EnaSupport        *boolValue       `xml:"enaSupport"`
	Enclave           *enclaveOptions  `xml:"enclaveOptions"`
	Groups            []groupRefXML    `xml:"groupSet>item"`
	InstanceID        string           `xml:"instanceId"`
	ShutdownBehavior  *textValue       `xml:"instanceInitiatedShutdownBehavior"`
	InstanceType      *textValue       `xml:"instanceType"`
	RootDeviceName    *textValue       `xml:"rootDeviceName"`
	SourceDestCheck   *boolValue       `xml:"sourceDestCheck"`
	UserData          *textValue       `xml:"userData"`
	Kernel            *textValue       `xml:"kernel"`
	RAMDisk           *textValue       `xml:"ramdisk"`
	SriovNetSupport   *textValue       `xml:"sriovNetSupport"`
	ProductCodesEmpty *struct{}        `xml:"productCodes"`
}

func (s *Service) describeInstanceAttribute(c *wire.Call) (any, error) {
	var in struct {
		Attribute  string
		DryRun     bool
		InstanceID string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := required("InstanceId", in.InstanceID, "Attribute", in.Attribute); err != nil {
		return nil, err
	}
	i, err := s.instanceByID(in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, i.id); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	x := s.instanceXML(i)
	out := attributeXML{InstanceID: i.id}
	switch in.Attribute {
	case "blockDeviceMapping":
		out.BlockDevices = x.BlockDevices
	case "disableApiStop":
		out.DisableAPIStop = &boolValue{value(i.data.DisableAPIStop)}
	case "disableApiTermination":
		out.DisableAPITermin = &boolValue{i.protection}
	case "ebsOptimized":
		out.EbsOptimized = &boolValue{x.EbsOptimized}
	case "enaSupport":
		out.EnaSupport = &boolValue{true}
	case "enclaveOptions":
		out.Enclave = &x.Enclave
	case "groupSet":
		out.Groups = x.Groups
	case "instanceInitiatedShutdownBehavior":
		out.ShutdownBehavior = &textValue{orElse(i.data.InstanceInitiatedShutdownBehavior, "stop")}
	case "instanceType":
		out.InstanceType = &textValue{i.kind.name}
	case "rootDeviceName":
		out.RootDeviceName = &textValue{x.RootDeviceName}
	case "sourceDestCheck":
		out.SourceDestCheck = &boolValue{value(x.SourceDestCheck)}
	case "userData":
		out.UserData = &textValue{base64.StdEncoding.EncodeToString(i.userdata)}
	case "kernel":
		out.Kernel = &textValue{}
	case "ramdisk":
		out.RAMDisk = &textValue{}
	case "sriovNetSupport":
		out.SriovNetSupport = &textValue{"simple"}
	case "productCodes":
		out.ProductCodesEmpty = &struct{}{}
	default:
		return nil, invalid("attribute", in.Attribute)
	}
	return out, nil
}

type boolInput struct{ Value *bool }

type textInput struct{ Value *string }

type modifyInstanceAttributeInput struct {
	Attribute          string
	BlockDeviceMapping []struct {
		DeviceName string
		Ebs        *struct {
			DeleteOnTermination *bool
			VolumeID            string `query:"VolumeId"`
		}
	}
	DisableAPIStop                    *boolInput `query:"DisableApiStop"`
	DisableAPITermination             *boolInput `query:"DisableApiTermination"`
	DryRun                            bool
	EbsOptimized                      *boolInput
	GroupID                           []string `query:"GroupId"`
	InstanceID                        string   `query:"InstanceId"`
	InstanceInitiatedShutdownBehavior *textInput
	InstanceType                      *textInput
	SourceDestCheck                   *boolInput
	UserData                          *textInput
	Value                             *string
}

// named moves the older form, Attribute and Value, into the newer one.
func (in *modifyInstanceAttributeInput) named() error {
	if in.Attribute == "" {
		return nil
	}
	if in.Value == nil {
		return missing("Value")
	}
	flags := map[string]**boolInput{
		"disableApiStop": &in.DisableAPIStop, "disableApiTermination": &in.DisableAPITermination, "ebsOptimized": &in.EbsOptimized, "sourceDestCheck": &in.SourceDestCheck,
	}
	texts := map[string]**textInput{
		"instanceInitiatedShutdownBehavior": &in.InstanceInitiatedShutdownBehavior, "instanceType": &in.InstanceType, "userData": &in.UserData,
	}
	switch {
	case flags[in.Attribute] != nil:
		b, err := strconv.ParseBool(*in.Value)
		if err != nil {
			return invalid("Value", *in.Value)
		}
		*flags[in.Attribute] = &boolInput{&b}
	case texts[in.Attribute] != nil:
		*texts[in.Attribute] = &textInput{in.Value}
	default:
		return invalid("attribute", in.Attribute)
	}
	return nil
}

// count is how many attributes a request changes: AWS takes one at a time.
func (in *modifyInstanceAttributeInput) count() int {
	n := 0
	for _, given := range []bool{
		len(in.BlockDeviceMapping) > 0, in.DisableAPIStop != nil, in.DisableAPITermination != nil, in.EbsOptimized != nil, len(in.GroupID) > 0,
		in.InstanceInitiatedShutdownBehavior != nil, in.InstanceType != nil, in.SourceDestCheck != nil, in.UserData != nil,
	} {
		n += b2i(given)
	}
	return n
}

func (s *Service) modifyInstanceAttribute(c *wire.Call) (any, error) {
	var in modifyInstanceAttributeInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := required("InstanceId", in.InstanceID); err != nil {
		return nil, err
	}
	i, err := s.instanceByID(in.InstanceID)
	if err != nil {
		return nil, err
	}
	attribute := policy.Context{}
	if in.Attribute != "" {
		attribute["ec2:Attribute"] = []string{in.Attribute}
	}
	for k, v := range s.conditions(i.id) {
		attribute[k] = v
	}
	if err := c.Authorize("ec2:ModifyInstanceAttribute", s.ARN(i.id), attribute); err != nil {
		return nil, err
	}
	if err := in.named(); err != nil {
		return nil, err
	}
	switch n := in.count(); {
	case n == 0:
		return nil, failf("InvalidParameterCombination", "No attributes specified.")
	case n > 1:
		return nil, failf("InvalidParameterCombination", "Fields for multiple attribute types specified")
	case !i.alive():
		return nil, failf("IncorrectInstanceState", "The instance '%s' is not in the 'stopped' state.", i.id)
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	return ok, s.setAttribute(i, in)
}

func (s *Service) setAttribute(i *instance, in modifyInstanceAttributeInput) error {
	stopped := func() error {
		if i.state != stateStopped {
			return failf("IncorrectInstanceState", "The instance '%s' is not in the 'stopped' state.", i.id)
		}
		return nil
	}
	switch {
	case in.DisableAPIStop != nil:
		i.data.DisableAPIStop = ptr(value(in.DisableAPIStop.Value))
	case in.DisableAPITermination != nil:
		if i.spot != nil && value(in.DisableAPITermination.Value) {
			return failf("UnsupportedOperation", "Termination protection is not supported for Spot Instances.")
		}
		i.protection = value(in.DisableAPITermination.Value)
	case in.EbsOptimized != nil:
		if err := stopped(); err != nil {
			return err
		}
		i.data.EbsOptimized = ptr(value(in.EbsOptimized.Value))
	case in.InstanceInitiatedShutdownBehavior != nil:
		v := value(in.InstanceInitiatedShutdownBehavior.Value)
		if v != "stop" && v != "terminate" {
			return failf("InvalidInstanceAttributeValue", "The value '%s' for instanceInitiatedShutdownBehavior is invalid", v)
		}
		i.data.InstanceInitiatedShutdownBehavior = &v
	case in.InstanceType != nil:
		if err := stopped(); err != nil {
			return err
		}
		t := s.types[value(in.InstanceType.Value)]
		if t == nil || t.arch != i.kind.arch {
			return failf("InvalidInstanceAttributeValue", "The instance type '%s' is not supported for the instance", value(in.InstanceType.Value))
		}
		i.kind = t
	case in.UserData != nil:
		if err := stopped(); err != nil {
			return err
		}
		data, err := decodeUserData(in.UserData.Value)
		if err != nil {
			return err
		}
		i.userdata = data
	case in.SourceDestCheck != nil:
		return s.setSourceDestCheck(i, value(in.SourceDestCheck.Value))
	case len(in.GroupID) > 0:
		return s.setInstanceGroups(i, in.GroupID)
	default:
		for _, m := range in.BlockDeviceMapping {
			if m.Ebs == nil || m.Ebs.DeleteOnTermination == nil {
				continue
			}
			for _, id := range i.volumes {
				if v := s.volumes[id]; v != nil && v.device == m.DeviceName {
					v.keep = !*m.Ebs.DeleteOnTermination
				}
			}
		}
	}
	return nil
}

func (s *Service) modifyInstanceMetadataOptions(c *wire.Call) (any, error) {
	var in struct {
		metadataOptions
		DryRun     bool
		InstanceID string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	i, err := s.instanceByID(in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, i.id); err != nil {
		return nil, err
	}
	if err := checkMetadata(&in.metadataOptions); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	i.data.MetadataOptions = ptr(replaceFields(*i.data.MetadataOptions, in.metadataOptions))
	return struct {
		InstanceID string      `xml:"instanceId"`
		Options    metadataXML `xml:"instanceMetadataOptions"`
	}{i.id, metadataXML{metadataOptions: *i.data.MetadataOptions, State: "pending"}}, nil
}

func (s *Service) modifyInstanceMaintenanceOptions(c *wire.Call) (any, error) {
	var in struct {
		AutoRecovery string
		DryRun       bool
		InstanceID   string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	i, err := s.instanceByID(in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, i.id); err != nil {
		return nil, err
	}
	if in.AutoRecovery != "default" && in.AutoRecovery != "disabled" {
		return nil, invalid("autoRecovery", in.AutoRecovery)
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	i.data.MaintenanceOptions = &maintenanceOptions{AutoRecovery: &in.AutoRecovery}
	return struct {
		AutoRecovery string `xml:"autoRecovery"`
		InstanceID   string `xml:"instanceId"`
	}{in.AutoRecovery, i.id}, nil
}

// credits are the CPU credit option in force: T3 and later are unlimited unless told otherwise, T2 is standard.
func (i *instance) credits() string {
	if o := i.data.CreditSpecification; o != nil {
		return value(o.CPUCredits)
	}
	if i.kind.family == "t2" {
		return "standard"
	}
	return "unlimited"
}

type creditXML struct {
	CPUCredits string `xml:"cpuCredits,omitempty"`
	InstanceID string `xml:"instanceId"`
}

func (s *Service) describeInstanceCreditSpecifications(c *wire.Call) (any, error) {
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
	found, next, err := find(s, s.instances, query{in.InstanceID, in.Filter, in.MaxResults, in.NextToken}, map[string]func(*instance) []string{
		"instance-id": one(func(i *instance) string { return i.id }),
	})
	if err != nil {
		return nil, err
	}
	var out struct {
		Items     []creditXML `xml:"instanceCreditSpecificationSet>item"`
		NextToken string      `xml:"nextToken,omitempty"`
	}
	for _, i := range found {
		switch {
		case !i.kind.burstable && len(in.InstanceID) > 0:
			return nil, failf("InstanceCreditSpecification.NotSupported", "The instance '%s' does not use CPU credits.", i.id)
		case i.kind.burstable && (len(in.InstanceID) > 0 || i.credits() == "unlimited"):
			out.Items = append(out.Items, creditXML{i.credits(), i.id})
		}
	}
	out.NextToken = next
	return out, nil
}

func (s *Service) modifyInstanceCreditSpecification(c *wire.Call) (any, error) {
	var in struct {
		ClientToken                 string
		DryRun                      bool
		InstanceCreditSpecification []struct {
			CPUCredits string `query:"CpuCredits"`
			InstanceID string `query:"InstanceId"`
		}
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if len(in.InstanceCreditSpecification) == 0 {
		return nil, missing("InstanceCreditSpecification")
	}
	var out struct {
		Items []creditXML `xml:"successfulInstanceCreditSpecificationSet>item"`
	}
	var instances []*instance
	for _, spec := range in.InstanceCreditSpecification {
		i, err := s.instanceByID(spec.InstanceID)
		if err != nil {
			return nil, err
		}
		if err := s.allow(c, c.Action, i.id); err != nil {
			return nil, err
		}
		if !i.kind.burstable {
			return nil, failf("InstanceCreditSpecification.NotSupported", "The instance '%s' does not use CPU credits.", i.id)
		}
		if spec.CPUCredits != "standard" && spec.CPUCredits != "unlimited" {
			return nil, failf("InvalidCpuCredits.Malformed", "The value '%s' for CpuCredits is invalid", spec.CPUCredits)
		}
		instances = append(instances, i)
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	for n, i := range instances {
		i.data.CreditSpecification = &creditSpecification{CPUCredits: ptr(in.InstanceCreditSpecification[n].CPUCredits)}
		out.Items = append(out.Items, creditXML{InstanceID: i.id})
	}
	return out, nil
}

func (s *Service) monitorInstances(c *wire.Call) (any, error) { return s.setMonitoring(c, true) }

func (s *Service) unmonitorInstances(c *wire.Call) (any, error) { return s.setMonitoring(c, false) }

func (s *Service) setMonitoring(c *wire.Call, on bool) (any, error) {
	var in struct {
		DryRun     bool
		InstanceID []string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	instances, err := s.several(c, in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	type item struct {
		ID         string    `xml:"instanceId"`
		Monitoring stateOnly `xml:"monitoring"`
	}
	var out struct {
		Items []item `xml:"instancesSet>item"`
	}
	state := map[bool]string{true: "pending", false: "disabling"}[on]
	for _, i := range instances {
		i.data.Monitoring = &monitoringOptions{Enabled: &on}
		out.Items = append(out.Items, item{i.id, stateOnly{state}})
	}
	return out, nil
}

func (s *Service) getInstanceUefiData(c *wire.Call) (any, error) {
	var in struct {
		DryRun     bool
		InstanceID string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	i, err := s.instanceByID(in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, i.id); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	return struct {
		InstanceID string `xml:"instanceId"`
		UefiData   string `xml:"uefiData"`
	}{i.id, ""}, nil
}

// describeInstanceStatus tells of running instances only, unless it is told to tell of all.
func (s *Service) describeInstanceStatus(c *wire.Call) (any, error) {
	var in struct {
		DryRun              bool
		Filter              []Filter
		IncludeAllInstances bool
		InstanceID          []string `query:"InstanceId"`
		MaxResults          int
		NextToken           string
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
	table := s.instances
	if len(in.InstanceID) > 0 {
		table = map[string]*instance{}
		for _, id := range in.InstanceID {
			i, err := s.instanceByID(id)
			if err != nil {
				return nil, err
			}
			table[id] = i
		}
	}
	if !in.IncludeAllInstances {
		running := map[string]*instance{}
		for id, i := range table {
			if i.state == stateRunning {
				running[id] = i
			}
		}
		table = running
	}
	found, next, err := find(s, table, query{filters: in.Filter, maxResults: in.MaxResults, nextToken: in.NextToken}, through((*instance).status, statusFilters))
	if err != nil {
		return nil, err
	}
	var out struct {
		Items     []statusXML `xml:"instanceStatusSet>item"`
		NextToken string      `xml:"nextToken,omitempty"`
	}
	for _, i := range found {
		out.Items = append(out.Items, i.status())
	}
	out.NextToken = next
	return out, nil
}

type statusXML struct {
	Zone           string        `xml:"availabilityZone"`
	ID             string        `xml:"instanceId"`
	State          stateXML      `xml:"instanceState"`
	InstanceStatus statusSummary `xml:"instanceStatus"`
	SystemStatus   statusSummary `xml:"systemStatus"`
	EbsStatus      statusSummary `xml:"attachedEbsStatus"`
}

type statusSummary struct {
	Details []statusDetail `xml:"details>item"`
	Status  string         `xml:"status"`
}

type statusDetail struct {
	Name   string `xml:"name"`
	Status string `xml:"status"`
}

func (i *instance) status() statusXML {
	summary, reach := "not-applicable", ""
	if i.state == stateRunning {
		summary, reach = "ok", "passed"
		if i.impaired {
			summary, reach = "impaired", "failed"
		}
	}
	check := statusSummary{Status: summary}
	if reach != "" {
		check.Details = []statusDetail{{Name: "reachability", Status: reach}}
	}
	system := check
	if i.impaired && i.state == stateRunning {
		system = statusSummary{Status: "ok", Details: []statusDetail{{Name: "reachability", Status: "passed"}}}
	}
	return statusXML{Zone: i.zone, ID: i.id, State: stateOf(i.state), InstanceStatus: check, SystemStatus: system, EbsStatus: system}
}

// statusFilters are the filters of DescribeInstanceStatus.
var statusFilters = map[string]func(statusXML) []string{
	"attached-ebs-status.status":   one(func(x statusXML) string { return x.EbsStatus.Status }),
	"availability-zone":            one(func(x statusXML) string { return x.Zone }),
	"instance-state-code":          one(func(x statusXML) string { return strconv.Itoa(x.State.Code) }),
	"instance-state-name":          one(func(x statusXML) string { return x.State.Name }),
	"instance-status.reachability": one(func(x statusXML) string { return detail(x.InstanceStatus) }),
	"instance-status.status":       one(func(x statusXML) string { return x.InstanceStatus.Status }),
	"system-status.reachability":   one(func(x statusXML) string { return detail(x.SystemStatus) }),
	"system-status.status":         one(func(x statusXML) string { return x.SystemStatus.Status }),
}

func detail(s statusSummary) string {
	if len(s.Details) == 0 {
		return ""
	}
	return s.Details[0].Status
}
