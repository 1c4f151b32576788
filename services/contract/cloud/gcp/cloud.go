// Package gcp describes Google Cloud to the shard configuration: VMs are Compute Engine instances.
package gcp

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/apiargs"
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
	Sleeps:            []string{"stopped", "suspended"},
	// 1,500 calls in each minute, for all changes of a project: https://cloud.google.com/compute/api-quota
	Creates:          cloud.Rate{AtOnce: 1500, PerSecond: 25},
	ImagesNeedOwners: true,
	Attestation:      Attestation,
	IdentityTokens:   true,
	MaxUserdata:      256 << 10, // the size of a metadata value
	LeaderNetwork:    LeaderAddress{},
	LoadBalancer:     InstanceGroup{},
	Identity:         PooledAccount{},
	CheckZone:        checkZone,
	CheckOptions:     checkOptions,
	CheckArgs:        call.CheckArgs,

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

// PooledAccount is the identity of servers on AWS that reach a bucket of Google Cloud.
type PooledAccount struct {
	// GCS: provider of the workload identity pool that trusts the servers' AWS account, such as
	// projects/123456789012/locations/global/workloadIdentityPools/nstance/providers/aws.
	PoolProvider string `json:"pool_provider,omitempty" support:"hidden"`
	// GCS: email of the service account that the servers impersonate.
	ServiceAccount string `json:"service_account,omitempty" support:"hidden"`
}

var (
	// poolProvider is the form of the resource name of a provider of a workload identity pool.
	poolProvider = regexp.MustCompile(
		`^projects/[0-9]+/locations/global/workloadIdentityPools/[a-z0-9-]{4,32}/providers/[a-z0-9-]{4,32}$`)
	serviceAccount = regexp.MustCompile(`^[a-z0-9.-]+@[a-z0-9.-]+\.gserviceaccount\.com$`)
)

// Check implements [cloud.Checker].
func (a PooledAccount) Check(string) (found []cloud.Problem) {
	if !poolProvider.MatchString(a.PoolProvider) {
		found = append(found, cloud.Problem{Path: []any{"pool_provider"},
			Message: fmt.Sprintf("%q is not the name of a provider of a workload identity pool", a.PoolProvider),
			Hint: "such as projects/123456789012/locations/global/workloadIdentityPools/nstance/providers/aws, with " +
				"the number of the project"})
	}
	if !serviceAccount.MatchString(a.ServiceAccount) {
		found = append(found, cloud.Problem{Path: []any{"service_account"},
			Message: fmt.Sprintf("%q is not the email of a service account", a.ServiceAccount),
			Hint:    "such as nstance@my-project.iam.gserviceaccount.com"})
	}
	return found
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
	return cloud.ParseFields(options, "provider gcp has no such option", map[string]cloud.Field[string]{
		OptionProject: {Parse: cloud.Matching(project, new(string), "%q is not the ID of a project")}})
}

//go:generate go test -run ^TestArgFieldsAreCurrent$ . -update

// call is the API call that takes args.
var call = apiargs.Call{
	Name: "instances.insert", Reference: "the request body of instances.insert in the Compute Engine API reference",
	Fields: argFields, Root: "Instance", Reserved: reserved,
	Rules: func(d *apiargs.Decoder, args map[string]any) { argsDecoder{d}.checkRules(args) },
}

// reserved are the fields of an instance that args may not set, each with the reason.
var reserved = map[string]string{
	"deletionProtection": "the server must be able to delete its instances",
	"machineType":        "it is the group's instance_type",
	"name":               "it is the instance's ID",
	"zone":               "it is the shard's, server.provider.zone",
}

// DecodeArgs is [apiargs.Call.DecodeArgs] of the call.
// https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert
func DecodeArgs(args map[string]any, templates bool) (map[string]any, []cloud.Problem) {
	return call.DecodeArgs(args, templates)
}

// argsDecoder checks args against the additional rules of the server.
type argsDecoder struct{ *apiargs.Decoder }

// Prefix is the prefix of labels and metadata keys that only the server writes.
const Prefix = "nstance-"

// Keys of the instance metadata that hold a VM's userdata. The guest environment of Google's images runs a script in
// startup-script. cloud-init reads user-data.
const (
	StartupScript = "startup-script"
	UserData      = "user-data"
)

// A label consists of lower-case letters of any language, digits, underscores and dashes.
// https://cloud.google.com/compute/docs/labeling-resources#requirements
var (
	labelKey   = regexp.MustCompile(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]*$`)
	labelValue = regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}_-]*$`)
)

// maxLabel is the maximum number of characters of a label's key or value. As a limit in the expressions above, it would
// make them take 8 MB and 11 ms in each start of a program.
const maxLabel = 63

// maxLabelBytes is the maximum size of a label's key or value in bytes.
const maxLabelBytes = 128

// CheckLabel reports a label that Compute Engine refuses.
func CheckLabel(key, value string) error {
	switch {
	case !labelKey.MatchString(key) || len(key) > maxLabelBytes || utf8.RuneCountInString(key) > maxLabel:
		return fmt.Errorf("label %q: a key has at most 63 lower-case letters, digits, underscores and dashes, and "+
			"begins with a letter", key)
	case !labelValue.MatchString(value) || len(value) > maxLabelBytes || utf8.RuneCountInString(value) > maxLabel:
		return fmt.Errorf("label %q: the value %q has more than 63 characters, or others than lower-case letters, "+
			"digits, underscores and dashes", key, value)
	}
	return nil
}

// Limits of one VM. https://cloud.google.com/compute/docs/metadata/setting-custom-metadata and
// https://cloud.google.com/compute/docs/labeling-resources
const (
	maxLabels      = 64
	maxNetworkTags = 64
	maxMetadata    = 512 << 10 // all keys and values; no text of a configuration exceeds the limit of one value
)

// ServerLabels is the number of labels that the server adds to a VM.
const ServerLabels = 12

var metadataKey = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,127}$`)

const reasonSubnet = "it is taken from the group's subnet_pool"

// checkRules reports values in decoded args that would break the server's own guarantees.
func (d argsDecoder) checkRules(args map[string]any) {
	scheduling, _ := args["scheduling"].(map[string]any)
	if scheduling["automaticRestart"] == true {
		d.Report([]any{"scheduling", "automaticRestart"}, "the server replaces a VM that stops", "is always false")
	}
	action, _ := scheduling["instanceTerminationAction"].(string)
	if action != "" && action != "DELETE" && !d.IsTemplate(action) {
		d.Report([]any{"scheduling", "instanceTerminationAction"}, "the server replaces a VM that stops",
			"is always %q", "DELETE")
	}
	d.checkLabels(args)
	d.checkMetadata(args)
	d.checkTags(args)
	d.checkInterfaces(args)
	d.checkDisks(args)
}

func (d argsDecoder) checkLabels(args map[string]any) {
	labels, _ := args["labels"].(map[string]any)
	if n := len(labels); n > maxLabels-ServerLabels {
		d.ReportWritten([]any{"labels"}, "", "%d labels, more than %d: Compute Engine accepts %d, and the server adds "+
			"its own", n, maxLabels-ServerLabels, maxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value, _ := labels[key].(string)
		if d.IsTemplate(value) {
			value = ""
		}
		if err := CheckLabel(key, value); err != nil {
			d.Report([]any{"labels", key}, "", "%v", err)
		}
		if strings.HasPrefix(key, Prefix) {
			d.Report([]any{"labels", key}, "", "labels that begin with %s are the server's", Prefix)
		}
	}
}

func (d argsDecoder) checkMetadata(args map[string]any) {
	metadata, _ := args["metadata"].(map[string]any)
	seen, size := map[string]bool{}, 0
	for i, item := range apiargs.Objects(metadata["items"]) {
		key, _ := item["key"].(string)
		at := []any{"metadata", "items", i, "key"}
		switch {
		case key == "":
			d.Report(at, "", "is missing")
		case key == StartupScript || key == UserData:
			d.Report(at, "it is the template's userdata", apiargs.SetByServer)
		case strings.HasPrefix(key, Prefix):
			d.Report(at, "", "keys that begin with %s are the server's", Prefix)
		case !metadataKey.MatchString(key):
			d.ReportWritten(at, "", "%q is not a key of metadata: at most 127 letters, digits, underscores and dashes",
				key)
		case seen[key]:
			d.ReportWritten(at, "", "%q is there twice", key)
		}
		seen[key] = true
		value, _ := item["value"].(string)
		size += len(key) + len(value)
	}
	if size >= maxMetadata {
		d.ReportWritten([]any{"metadata", "items"}, "", "are %d bytes, and Compute Engine accepts less than %d", size,
			maxMetadata)
	}
}

// checkTags checks the network tags.
func (d argsDecoder) checkTags(args map[string]any) {
	tags, _ := args["tags"].(map[string]any)
	items, _ := tags["items"].([]any)
	if len(items) > maxNetworkTags {
		d.ReportWritten([]any{"tags", "items"}, "", "has %d network tags, and Compute Engine accepts %d", len(items),
			maxNetworkTags)
	}
	for i, item := range items {
		if tag, _ := item.(string); !d.IsTemplate(tag) && !resourceName.MatchString(tag) {
			d.ReportWritten([]any{"tags", "items", i}, "",
				"%q is not a network tag: at most 63 lower-case letters, digits and "+
					"dashes, beginning with a letter", tag)
		}
	}
}

// checkInterfaces refuses fixed addresses, internal and external, because only one VM could have it. It also refuses a
// network in the args of the first interface, because the group determines that interface's subnet.
func (d argsDecoder) checkInterfaces(args map[string]any) {
	for i, nic := range apiargs.Objects(args["networkInterfaces"]) {
		for _, field := range []string{"network", "subnetwork", "networkAttachment"} {
			if i == 0 && nic[field] != nil {
				d.Report([]any{"networkInterfaces", i, field}, reasonSubnet, apiargs.SetByServer)
			}
		}
		for _, field := range []string{"networkIP", "ipv6Address"} {
			if nic[field] != nil {
				d.Report([]any{"networkInterfaces", i, field}, "", "only one instance could have this address")
			}
		}
		for list, field := range map[string]string{"accessConfigs": "natIP", "ipv6AccessConfigs": "externalIpv6"} {
			for n, config := range apiargs.Objects(nic[list]) {
				if config[field] != nil {
					d.Report([]any{"networkInterfaces", i, list, n, field}, "",
						"only one instance could have this address")
				}
			}
		}
	}
}

// checkDisks refuses a disk that only one VM could use, and a disk that would outlive its VM. The disks of a machine
// image could be such disks.
func (d argsDecoder) checkDisks(args map[string]any) {
	if args["sourceMachineImage"] != nil {
		d.Report([]any{"sourceMachineImage"}, "use sourceImage or sourceSnapshot in disks[].initializeParams",
			"the server names the disks of an instance")
	}
	for i, disk := range apiargs.Objects(args["disks"]) {
		if mode, _ := disk["mode"].(string); disk["source"] != nil && mode != "READ_ONLY" {
			d.Report([]any{"disks", i, "source"}, "attach it with mode READ_ONLY, or use initializeParams",
				"only one instance could have a disk that exists already")
		}
		params, _ := disk["initializeParams"].(map[string]any)
		if params["diskName"] != nil {
			d.Report([]any{"disks", i, "initializeParams", "diskName"}, "", "only one instance could have this disk")
		}
		if disk["autoDelete"] == false && disk["source"] == nil {
			d.Report([]any{"disks", i, "autoDelete"}, "the disk would outlive its instance", "is always true")
		}
	}
}
