package ec2

import (
	"fmt"
)

// offered reports whether a zone offers a type.
func (s *Service) offered(instanceType, zone string) bool {
	return !s.withoutType[instanceType+" "+zone]
}

// WithoutType removes a type from a zone's offer. It takes the cloud's lock.
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
