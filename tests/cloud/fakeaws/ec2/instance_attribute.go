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
		"disableApiStop": &in.DisableAPIStop, "disableApiTermination": &in.DisableAPITermination,
		"ebsOptimized": &in.EbsOptimized, "sourceDestCheck": &in.SourceDestCheck,
	}
	texts := map[string]**textInput{
		"instanceInitiatedShutdownBehavior": &in.InstanceInitiatedShutdownBehavior, "instanceType": &in.InstanceType,
		"userData": &in.UserData,
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
		len(in.BlockDeviceMapping) > 0, in.DisableAPIStop != nil, in.DisableAPITermination != nil,
		in.EbsOptimized != nil, len(in.GroupID) > 0,
		in.InstanceInitiatedShutdownBehavior != nil, in.InstanceType != nil, in.SourceDestCheck != nil,
		in.UserData != nil,
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
			return failf("InvalidInstanceAttributeValue",
				"The value '%s' for instanceInitiatedShutdownBehavior is invalid", v)
		}
		i.data.InstanceInitiatedShutdownBehavior = &v
	case in.InstanceType != nil:
		if err := stopped(); err != nil {
			return err
		}
		t := s.types[value(in.InstanceType.Value)]
		if t == nil || t.arch != i.kind.arch {
			return failf("InvalidInstanceAttributeValue", "The instance type '%s' is not supported for the instance",
				value(in.InstanceType.Value))
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
