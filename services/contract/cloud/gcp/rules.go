package gcp

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud/apiargs"
)

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
	labelKey   = regexp.MustCompile(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}$`)
	labelValue = regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}_-]{0,63}$`)
)

// maxLabelBytes is the maximum size of a label's key or value in bytes.
const maxLabelBytes = 128

// CheckLabel reports a label that Compute Engine refuses.
func CheckLabel(key, value string) error {
	switch {
	case !labelKey.MatchString(key) || len(key) > maxLabelBytes:
		return fmt.Errorf("label %q: a key has at most 63 lower-case letters, digits, underscores and dashes, and "+
			"begins with a letter", key)
	case !labelValue.MatchString(value) || len(value) > maxLabelBytes:
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
