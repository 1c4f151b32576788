// Package gcp describes Google Cloud to the shard configuration: VMs are Compute Engine instances.
package gcp

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// Name is the cloud's name.
const Name = "gcp"

// OptionProject is the only option in server.provider.options: the project of the shard's VMs. The default is the
// project of the credentials.
const OptionProject = "project"

// Attestation is a value of server.attestation.method. With it, an agent's proof is the VM's identity token, which
// Google signs.
const Attestation = "gcp-identity-token"

// Audience returns the audience of an instance's identity token. The server accepts no token for another audience. So a
// service that got a token from the VM cannot register in the VM's place.
func Audience(instance string) string { return "nstance:" + instance }

// Block describes the cloud.
var Block = cloud.Block{
	Name:              Name,
	NeedsZone:         true,
	NeedsInstanceType: true,
	HasImages:         true,
	SpotArgs:          [][]any{{"scheduling", "provisioningModel"}, {"scheduling", "preemptible"}},
	NeedsArgs:         []string{"disks"},
	ImagesNeedOwners:  true,
	Attestation:       Attestation,
	MaxUserdata:       256 << 10, // the size of a metadata value
	LeaderNetwork:     LeaderAddress{},
	LoadBalancer:      InstanceGroup{},
	CheckZone:         checkZone,
	CheckOptions:      checkOptions,
	CheckArgs:         call.CheckArgs,

	LeaderNetworkKinds: []string{LeaderAlias, LeaderLoadBalancer},

	ObjectStores: []cloud.ObjectStore{{Name: "gcs"}},
	SecretsStores: []cloud.SecretsStore{{Name: "google-secret-manager", TakesProject: true,
		NeedsProject: func(source string) bool { return !strings.HasPrefix(source, "projects/") }}},
}

// Kinds of the leader's address.
const (
	// LeaderAlias means that the leader's address is an alias address, which the leader moves to its VM.
	LeaderAlias = "alias"
	// LeaderLoadBalancer means that the leader's address is that of an internal passthrough load balancer. The load
	// balancer finds the leader by a health check.
	LeaderLoadBalancer = "load_balancer"
)

// LeaderAddress holds Google Cloud's own fields of server.leader_network.
type LeaderAddress struct {
	// Google Cloud, kind alias: the secondary range of the servers' subnet that holds the address. Default: the primary
	// range.
	SecondaryRange string `json:"secondary_range,omitempty" support:"hidden"`
}

// Check implements [cloud.Checker].
func (a LeaderAddress) Check(kind string) []cloud.Problem {
	switch {
	case a.SecondaryRange == "":
		return nil
	case kind == LeaderLoadBalancer:
		return []cloud.Problem{{Path: []any{"secondary_range"}, Message: "is for kind " + LeaderAlias + " only"}}
	case !resourceName.MatchString(a.SecondaryRange):
		return []cloud.Problem{{Path: []any{"secondary_range"}, Message: notAName(a.SecondaryRange)}}
	}
	return nil
}

// InstanceGroup is the instance group to which a group's instances are added.
type InstanceGroup struct {
	// Google Cloud: the unmanaged instance group.
	InstanceGroupName string `json:"instance_group_name,omitempty" rule:"required" support:"hidden"`
	// Google Cloud: the regional backend services that have the instance group. The deregistration delay and
	// load_balancer_health need them.
	BackendServiceNames []string `json:"backend_service_names,omitempty" support:"hidden"`
}

// Check implements [cloud.Checker].
func (g InstanceGroup) Check(string) (found []cloud.Problem) {
	if g.InstanceGroupName != "" && !resourceName.MatchString(g.InstanceGroupName) {
		found = append(found, cloud.Problem{Path: []any{"instance_group_name"}, Message: notAName(g.InstanceGroupName)})
	}
	for i, name := range g.BackendServiceNames {
		if name != "" && !resourceName.MatchString(name) {
			found = append(found, cloud.Problem{Path: []any{"backend_service_names", i}, Message: notAName(name)})
		}
	}
	return found
}

// MissingForHealth implements [cloud.HealthSource].
func (g InstanceGroup) MissingForHealth() string {
	if len(g.BackendServiceNames) == 0 {
		return "backend_service_names"
	}
	return ""
}

// resourceName matches names of Compute Engine resources (RFC 1035). It also matches every instance ID.
var resourceName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

func notAName(text string) string {
	return fmt.Sprintf("%q is not a name of Compute Engine: at most 63 lower-case letters, digits and dashes, "+
		"beginning with a letter", text)
}

// checkZone checks that the zone is in the region, such as us-central1-a in us-central1.
func checkZone(region, zone string) []cloud.Problem {
	if i := strings.LastIndexByte(zone, '-'); i > 0 && zone[:i] == region && i < len(zone)-1 {
		return nil
	}
	return []cloud.Problem{{Path: []any{"zone"}, Message: fmt.Sprintf("%q is not a zone of region %q", zone, region),
		Hint: "zones of a region are named such as " + region + "-a"}}
}

// project matches a project's ID, with or without a domain, or its number.
var project = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z0-9][-a-z0-9]{0,61}[a-z0-9]$`)

func checkOptions(options map[string]string) []cloud.Problem {
	var found []cloud.Problem
	for _, name := range slices.Sorted(maps.Keys(options)) {
		switch value := options[name]; {
		case name != OptionProject:
			found = append(found, cloud.Problem{Path: []any{name}, Message: "provider gcp has no such option",
				Hint: "there is " + OptionProject})
		case !project.MatchString(value):
			found = append(found, cloud.Problem{Path: []any{name},
				Message: fmt.Sprintf("%q is not the ID of a project", value)})
		}
	}
	return found
}
