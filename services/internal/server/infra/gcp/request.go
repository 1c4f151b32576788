package gcp

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/api/compute/v1"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// maxUserdata is the maximum size of a metadata item in bytes.
// https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations
const maxUserdata = 256 << 10

// instance returns the Compute Engine instance that the insert for a create request sends. It depends only on the
// request and the configuration.
func (p *Provider) instance(req infra.CreateRequest) (*compute.Instance, error) {
	if req.InstanceType == "" || req.Subnet == "" {
		return nil, fmt.Errorf("instance type %q, subnet %q: both are needed", req.InstanceType, req.Subnet)
	}
	in, err := decodeArgs(req.Args)
	if err != nil {
		return nil, err
	}
	in.Name = req.Tags.Instance.String()
	in.MachineType = "projects/" + p.cfg.Project + "/zones/" + p.cfg.Zone + "/machineTypes/" + req.InstanceType
	if len(in.NetworkInterfaces) == 0 {
		in.NetworkInterfaces = []*compute.NetworkInterface{{}}
	}
	in.NetworkInterfaces[0].Subnetwork = p.subnetPath(req.Subnet)
	setScheduling(in, req.Tags.Spot)

	labels, items, err := encodeTags(req.Tags)
	if err != nil {
		return nil, err
	}
	if err := setDisks(in, labels); err != nil {
		return nil, err
	}
	if in.Labels == nil {
		in.Labels = map[string]string{}
	}
	maps.Copy(in.Labels, labels)
	if items[itemRequest], err = req.Digest(); err != nil {
		return nil, err
	}
	if err := addUserdata(items, req.Userdata); err != nil {
		return nil, err
	}
	if in.Metadata == nil {
		in.Metadata = &compute.Metadata{}
	}
	for _, key := range slices.Sorted(maps.Keys(items)) {
		value := items[key]
		in.Metadata.Items = append(in.Metadata.Items, &compute.MetadataItems{Key: key, Value: &value})
	}
	return in, nil
}

// setScheduling disables automatic restarts. It also sets that a preempted Spot VM is deleted.
func setScheduling(in *compute.Instance, spot bool) {
	if in.Scheduling == nil {
		in.Scheduling = &compute.Scheduling{}
	}
	restart := false
	in.Scheduling.AutomaticRestart = &restart
	if spot {
		in.Scheduling.ProvisioningModel = "SPOT"
	}
	if in.Scheduling.ProvisioningModel == "SPOT" {
		in.Scheduling.InstanceTerminationAction = "DELETE"
	}
}

// setDisks labels the disks that are made with the VM, and sets that they are deleted with it.
func setDisks(in *compute.Instance, labels map[string]string) error {
	if len(in.Disks) == 0 {
		return errors.New("args.disks: is missing; disks[0].initializeParams.sourceImage is the image, and a " +
			"template such as {{ .Image.name }} takes it from the shard's images")
	}
	if !slices.ContainsFunc(in.Disks, func(d *compute.AttachedDisk) bool { return d.Boot }) {
		in.Disks[0].Boot = true
	}
	for _, disk := range in.Disks {
		if disk.Source != "" {
			continue
		}
		disk.AutoDelete = true
		if disk.InitializeParams == nil {
			disk.InitializeParams = &compute.AttachedDiskInitializeParams{}
		}
		if disk.Type == "SCRATCH" {
			continue // a local SSD has no labels
		}
		if disk.InitializeParams.Labels == nil {
			disk.InitializeParams.Labels = map[string]string{}
		}
		maps.Copy(disk.InitializeParams.Labels, labels)
	}
	return nil
}

// userdataEncoding is the metadata key with the encoding of the userdata for cloud-init.
const userdataEncoding = "user-data-encoding"

// addUserdata adds userdata to the metadata. If userdata is a script, the guest environment of Google's own images runs
// it at every boot, because these images have no cloud-init. All other userdata is for cloud-init. Userdata that is not
// text is encoded as base64 and marked as base64. Userdata that the configuration has encoded (encoding base64,
// gzip+base64) is only marked.
// https://cloudinit.readthedocs.io/en/latest/reference/datasources/gce.html
func addUserdata(items map[string]string, userdata []byte) error {
	text := string(userdata)
	_, err := base64.StdEncoding.Strict().DecodeString(text)
	switch {
	case text == "":
		return nil
	case strings.HasPrefix(text, "#!") && utf8.ValidString(text):
		items[contract.StartupScript] = text
	case err == nil:
		items[contract.UserData], items[userdataEncoding] = text, "base64"
	case utf8.ValidString(text) && !strings.ContainsRune(text, 0):
		items[contract.UserData] = text
	default:
		text = base64.StdEncoding.EncodeToString(userdata)
		items[contract.UserData], items[userdataEncoding] = text, "base64"
	}
	if len(text) > maxUserdata {
		return fmt.Errorf("userdata: %d bytes, Compute Engine takes at most %d", len(text), maxUserdata)
	}
	return nil
}

// decodeArgs converts rendered args to an instance. The error lists all problems, each with its path.
func decodeArgs(args map[string]any) (*compute.Instance, error) {
	in := &compute.Instance{}
	decoded, found := contract.DecodeArgs(args, false)
	if err := infra.DecodeArgs(decoded, found, in); err != nil {
		return nil, err
	}
	forceSend(reflect.ValueOf(in).Elem(), decoded)
	return in, nil
}

// forceSend sets ForceSendFields of each struct to the fields that are set in the args. Without ForceSendFields, the
// SDK would leave out false and 0, although the API may have another default.
func forceSend(to reflect.Value, given map[string]any) {
	var names []string
	for i := range to.NumField() {
		field := to.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		value, named := given[name]
		if name == "" || name == "-" || !named || value == nil {
			continue
		}
		names = append(names, field.Name)
		switch value := value.(type) {
		case map[string]any:
			if to.Field(i).Kind() == reflect.Pointer && !to.Field(i).IsNil() {
				forceSend(to.Field(i).Elem(), value)
			}
		case []any:
			for n, element := range value {
				if object, ok := element.(map[string]any); ok && n < to.Field(i).Len() {
					forceSend(to.Field(i).Index(n).Elem(), object)
				}
			}
		}
	}
	if force := to.FieldByName("ForceSendFields"); force.IsValid() {
		force.Set(reflect.ValueOf(names))
	}
}
