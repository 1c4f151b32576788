package ec2

import (
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

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
	found, next, err := find(s, s.instances, query{in.InstanceID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*instance) []string{
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
			return nil, failf("InstanceCreditSpecification.NotSupported", "The instance '%s' does not use CPU credits.",
				i.id)
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
			return nil, failf("InstanceCreditSpecification.NotSupported", "The instance '%s' does not use CPU credits.",
				i.id)
		}
		if spec.CPUCredits != "standard" && spec.CPUCredits != "unlimited" {
			return nil, failf("InvalidCpuCredits.Malformed", "The value '%s' for CpuCredits is invalid",
				spec.CPUCredits)
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
