package ec2

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// offered reports whether a zone offers a type.
func (s *Service) offered(instanceType, zone string) bool {
	return !s.withoutType[instanceType+" "+zone]
}

// WithoutType makes a zone stop offering an instance type. It takes the cloud's lock.
func (s *Service) WithoutType(instanceType, zone string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withoutType[instanceType+" "+zone] = true
}

// SetLimits sets the account's quotas. vcpus limits the virtual CPUs of all running on-demand instances, spot limits
// the number of spot instances. Zero means no limit. It takes the cloud's lock.
func (s *Service) SetLimits(vcpus, spot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vcpuLimit, s.spotLimit = vcpus, spot
}

// unsupportedType returns the error of a launch in a zone that does not offer the type.
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

// describeTypeOfferings lists the types that each zone, or the region, offers.
func (s *Service) describeTypeOfferings(c *wire.Call) (any, error) {
	var in struct {
		LocationType string
		Filter       []Filter
		MaxResults   int
		NextToken    string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeInstanceTypeOfferings"); err != nil {
		return nil, err
	}
	locations := []string{s.cfg.Region}
	if in.LocationType == "availability-zone" {
		locations = s.cfg.Zones
	}
	type offering struct {
		Type     string `xml:"instanceType"`
		Kind     string `xml:"locationType"`
		Location string `xml:"location"`
	}
	var found []offering
	for _, name := range slices.Sorted(maps.Keys(s.types)) {
		for _, location := range locations {
			if !s.offered(name, location) {
				continue
			}
			fits, err := matches(in.Filter, nil, func(filter string) ([]string, bool) {
				value, known := map[string]string{"instance-type": name, "location": location}[filter]
				return []string{value}, known
			})
			if err != nil {
				return nil, err
			}
			if fits {
				found = append(found, offering{name, cmp.Or(in.LocationType, "region"), location})
			}
		}
	}
	return struct {
		Items []offering `xml:"instanceTypeOfferingSet>item"`
	}{found}, nil
}

// describeTypes lists the instance types with a requested name or architecture, and shows their CPUs and memory.
func (s *Service) describeTypes(c *wire.Call) (any, error) {
	var in struct {
		InstanceType []string
		Filter       []Filter
		MaxResults   int
		NextToken    string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeInstanceTypes"); err != nil {
		return nil, err
	}
	for _, name := range in.InstanceType {
		if s.types[name] == nil {
			return nil, failf("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", name)
		}
	}
	type typeXML struct {
		Name          string   `xml:"instanceType"`
		Architectures []string `xml:"processorInfo>supportedArchitectures>item"`
		VCPUs         int      `xml:"vCpuInfo>defaultVCpus"`
		Cores         int      `xml:"vCpuInfo>defaultCores"`
		Threads       int      `xml:"vCpuInfo>defaultThreadsPerCore"`
		Memory        int      `xml:"memoryInfo>sizeInMiB"`
		Hibernates    bool     `xml:"hibernationSupported"`
	}
	var found []typeXML
	for _, name := range slices.Sorted(maps.Keys(s.types)) {
		fits, err := matches(in.Filter, nil, func(filter string) ([]string, bool) {
			value, known := map[string]string{
				"instance-type": name, "processor-info.supported-architecture": s.types[name].arch,
			}[filter]
			return []string{value}, known
		})
		if err != nil {
			return nil, err
		}
		if fits && (len(in.InstanceType) == 0 || slices.Contains(in.InstanceType, name)) {
			t := s.types[name]
			found = append(found, typeXML{name, []string{t.arch}, t.vcpus, t.cores(), t.threads, t.memory,
				t.hibernates()})
		}
	}
	return struct {
		Items []typeXML `xml:"instanceTypeSet>item"`
	}{found}, nil
}
