package gcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/api/compute/v1"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

const (
	// young is the maximum age of a create request whose requestId alone prevents a second VM. Google remembers a
	// requestId for about an hour. young is shorter than an hour, because clocks differ.
	young = 30 * time.Minute
	// old is the maximum age of a create request for which Create may insert a VM. If a request is older, the log of
	// operations may no longer contain an earlier insert for it. Google keeps operations for longer than old, but not
	// forever.
	old = 3 * 24 * time.Hour
)

// Create implements infra.Provider with instances.insert. It returns when the insert has ended.
//
// The instance's ID is the VM's name, and the UUID in the ID is the requestId. When the VM is gone, the name can be
// used again immediately, and the requestId after an hour. So if a request is older than the constant young, Create
// first looks for the VM, and then for an earlier insert in the log of operations.
func (p *Provider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	if req.Tags.Instance.IsZero() {
		return infra.VM{}, refused("create", "no instance ID")
	}
	what := "create " + req.Tags.Instance.String()
	if req.Tags.CreatedAt.IsZero() {
		return infra.VM{}, refused(what, "the request has no time")
	}
	if req.Sleep != "" {
		if err := checkSleep(what, req.Sleep); err != nil {
			return infra.VM{}, err
		}
	}
	digest, err := req.Digest()
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, what, err)
	}
	in, err := p.instance(req, digest)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, what, err)
	}
	if age := p.cfg.Now().Sub(req.Tags.CreatedAt); age > young {
		vm, made, err := p.findMade(ctx, what, in, req.Sleep, age)
		if made || err != nil {
			return vm, err
		}
	}
	op, doubtful, err := p.api.insert(ctx, in, requestID(req.Tags.Instance))
	if err == nil {
		if err = p.api.wait(ctx, op); err == nil {
			return p.verify(ctx, what, in, req.Sleep, strconv.FormatUint(op.TargetId, 10))
		}
		doubtful = false
	}
	err = p.classify(what, "instances.insert", err)
	switch class := infra.ClassOf(err); {
	case class == infra.Conflict:
		return p.verify(ctx, what, in, req.Sleep, in.Name)
	case doubtful:
		return infra.VM{}, infra.Reclass(err, infra.Indeterminate) // An earlier attempt may have made it.
	case class == infra.NotFound:
		return infra.VM{}, infra.Reclass(err, infra.Invalid) // Something that the request names does not exist.
	}
	return infra.VM{}, err
}

// requestID returns the UUID of an instance ID.
func requestID(id ident.ID) string { return strings.TrimSuffix(id.Storage(), "-"+id.Prefix()) }

// findMade looks for the VM of an earlier insert for the same request. If made is true, an earlier insert made a VM, or
// may have made one, and Create must not insert again.
func (p *Provider) findMade(ctx context.Context, what string, in *compute.Instance, sleep string,
	age time.Duration) (vm infra.VM, made bool, err error) {
	_, err = p.api.get(ctx, in.Name)
	switch {
	case err == nil:
		vm, err = p.verify(ctx, what, in, sleep, in.Name)
		return vm, true, err
	case googlecloud.StatusOf(err) != http.StatusNotFound:
		return infra.VM{}, false, p.classify(what, "instances.get", err)
	case age > old:
		return infra.VM{}, true, infra.Errorf(infra.Conflict, what, "the request is %s old, so an earlier VM of this "+
			"ID may be forgotten", age.Round(time.Hour))
	}
	link := fmt.Sprintf(`targetLink eq ".*/zones/%s/instances/%s"`, p.cfg.Zone, in.Name)
	ops, err := p.api.operations(ctx, link)
	if err != nil {
		return infra.VM{}, false, p.classify(what, "zoneOperations.list", err)
	}
	for _, op := range ops {
		if op.OperationType != "insert" {
			continue
		}
		if op.Status != "DONE" || failureOf(op) == nil {
			return infra.VM{}, true, infra.Errorf(infra.Conflict, what, "an earlier insert made instance %d",
				op.TargetId)
		}
	}
	return infra.VM{}, false, nil
}

// verify describes the VM of a request. It fails as Conflict if the VM is gone or ending, or if another request made
// it. sleep is CreateRequest.Sleep: a VM that was created to sleep may do so.
func (p *Provider) verify(ctx context.Context, what string, in *compute.Instance, sleep, nameOrID string) (infra.VM,
	error) {
	found, err := p.api.get(ctx, nameOrID)
	switch {
	case googlecloud.StatusOf(err) == http.StatusNotFound:
		return infra.VM{}, infra.Errorf(infra.Conflict, what, "instance %s of this request was deleted", nameOrID)
	case err != nil:
		// An insert has made the VM. If reading the VM fails, this does not mean that the request was refused.
		return infra.VM{}, infra.Reclass(p.classify(what, "instances.get", err), infra.Indeterminate)
	}
	vm := p.describe(found)
	switch {
	case found.Labels[labelCluster] != in.Labels[labelCluster] || item(found, itemRequest) != item(in, itemRequest):
		return infra.VM{}, infra.Errorf(infra.Conflict, what, "instance %s was made by another request", vm.ProviderID)
	case sleep != "" && (vm.State == infra.Stopping || vm.State == infra.Stopped):
		if err := p.notDeleted(ctx, what, found); err != nil {
			return infra.VM{}, infra.Reclass(err, infra.Conflict)
		}
	case !vm.State.Alive():
		return infra.VM{}, infra.Errorf(infra.Conflict, what, "instance %s of this request is %s",
			vm.ProviderID, vm.State)
	}
	return vm, nil
}

// Delete implements infra.Provider with instances.get and instances.delete.
func (p *Provider) Delete(ctx context.Context, vm infra.VM) error {
	what := "delete " + vm.ProviderID
	_, err := p.owned(ctx, what, vm)
	if err == nil {
		err = p.classify(what, "instances.delete", p.api.delete(ctx, vm.ProviderID))
	}
	if infra.ClassOf(err) == infra.NotFound {
		return nil
	}
	return err
}

// Get implements infra.Provider with instances.get.
func (p *Provider) Get(ctx context.Context, providerID string) (infra.VM, error) {
	found, err := p.api.get(ctx, providerID)
	if err != nil {
		return infra.VM{}, p.classify("get "+providerID, "instances.get", err)
	}
	return p.describe(found), nil
}

// List implements infra.Provider. It reads all pages of instances.list, filtered by labels.
func (p *Provider) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	found, err := p.listOwned(ctx, owner)
	if err != nil {
		return nil, p.classify("list", "instances.list", err)
	}
	vms := make([]infra.VM, 0, len(found))
	for _, in := range found {
		vms = append(vms, p.describe(in))
	}
	return infra.SortVMs(vms), nil
}

// listOwned returns the instances with the labels of an owner.
func (p *Provider) listOwned(ctx context.Context, owner infra.Owner) ([]*compute.Instance, error) {
	return p.api.list(ctx, fmt.Sprintf("(labels.%s = %q) (labels.%s = %q)", labelCluster, owner.Cluster, labelShard,
		owner.Shard))
}

// FindByInstance implements infra.Provider. It looks the VM up by the VM's name.
func (p *Provider) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	what := "find " + id.String()
	found, err := p.api.get(ctx, id.String())
	if err != nil {
		return infra.VM{}, p.classify(what, "instances.get", err)
	}
	vm := p.describe(found)
	if vm.Tags.Owner != owner {
		return infra.VM{}, infra.Errorf(infra.NotFound, what, "the instance of this name is not the shard's")
	}
	return vm, nil
}

// ReadConsole implements infra.VMConsoles.
func (p *Provider) ReadConsole(ctx context.Context, vm infra.VM) ([]byte, error) {
	out, err := p.api.console(ctx, vm.ProviderID)
	if err != nil {
		return nil, p.classify("read the console of "+vm.ProviderID, "instances.getSerialPortOutput", err)
	}
	return []byte(out.Contents), nil
}

// RemoveUserdata implements infra.UserdataRemover. It leaves the other metadata unchanged. If another client changes
// the metadata at the same time, RemoveUserdata fails as Conflict.
func (p *Provider) RemoveUserdata(ctx context.Context, owner infra.Owner, id ident.ID) error {
	what := "remove the userdata of " + id.String()
	found, err := p.api.get(ctx, id.String())
	if err != nil {
		return p.classify(what, "instances.get", err)
	}
	if tags, _ := decodeTags(found); tags.Owner != owner {
		return infra.Errorf(infra.NotFound, what, "the instance of this name is not the shard's")
	}
	if found.Metadata == nil {
		return nil
	}
	kept := slices.DeleteFunc(slices.Clone(found.Metadata.Items), func(i *compute.MetadataItems) bool {
		return i.Key == contract.StartupScript || i.Key == contract.UserData || i.Key == userdataEncoding
	})
	if len(kept) == len(found.Metadata.Items) {
		return nil
	}
	return p.classify(what, "instances.setMetadata", p.api.setMetadata(ctx, found.Name, &compute.Metadata{
		Fingerprint: found.Metadata.Fingerprint, Items: kept, ForceSendFields: []string{"Items"}}))
}

// MachineState implements infra.MachineEvidence. A machine ID is a numeric ID, which Google never reuses. Names are
// reused: an instance group gives a server's name to its replacement. An instance that does not exist is Deleted only
// if the log of operations shows its deletion.
func (p *Provider) MachineState(ctx context.Context, machineID string) (infra.State, error) {
	what := "look up machine " + machineID
	if !numericID.MatchString(machineID) {
		return "", refused(what, "%q is not the ID of an instance", machineID)
	}
	found, err := p.api.get(ctx, machineID)
	if err == nil {
		return stateOf(found), nil
	}
	err = p.classify(what, "instances.get", err)
	if infra.ClassOf(err) != infra.NotFound {
		return "", err
	}
	ops, opsErr := p.operationsOn(ctx, what, machineID)
	if opsErr != nil {
		return "", opsErr
	}
	for _, op := range ops {
		if deletes(op.OperationType) && op.Status == "DONE" && failureOf(op) == nil {
			return infra.Deleted, nil
		}
	}
	return "", err
}

// operationsOn returns the operations on the instance with an ID, also after the instance was deleted.
func (p *Provider) operationsOn(ctx context.Context, what, id string) ([]*compute.Operation, error) {
	ops, err := p.api.operations(ctx, fmt.Sprintf("targetId = %q", id))
	return ops, p.classify(what, "zoneOperations.list", err)
}

// deletes reports whether a type of operation deletes an instance. Besides the type "delete", there are types for
// repairs by managed groups and for preemptions.
// https://cloud.google.com/compute/docs/instances/viewing-compute-operations
func deletes(operationType string) bool {
	return operationType == "delete" || strings.HasSuffix(operationType, ".deleteInstance") ||
		operationType == "compute.instances.preempted"
}

// stateOf converts an instance's status to an infra.State. An instance that is being deleted is Stopping until it is
// gone. https://cloud.google.com/compute/docs/instances/instance-lifecycle
func stateOf(in *compute.Instance) infra.State {
	switch in.Status {
	case "PROVISIONING", "STAGING", "PENDING":
		return infra.Pending
	case "RUNNING", "PENDING_STOP":
		return infra.Running
	case "STOPPING", "SUSPENDING":
		return infra.Stopping
	case "TERMINATED", "STOPPED", "SUSPENDED":
		return infra.Stopped
	case "DEPROVISIONING":
		return infra.Deleting
	default: // such as REPAIRING
		return infra.Unknown
	}
}

// describe converts an instance to an infra.VM.
func (p *Provider) describe(in *compute.Instance) infra.VM {
	vm := infra.VM{ProviderID: strconv.FormatUint(in.Id, 10), State: stateOf(in),
		Hostname: cmp.Or(in.Hostname, in.Name), Account: p.cfg.Project}
	vm.Tags, vm.Warning = decodeTags(in)
	launched, err := time.Parse(time.RFC3339, in.CreationTimestamp)
	if err != nil {
		vm.Warning = strings.TrimPrefix(vm.Warning+"; creation time: "+err.Error(), "; ")
	}
	vm.LaunchedAt = launched.UTC()
	add := func(text string) string {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return ""
		}
		if !slices.Contains(vm.Addresses, addr.String()) {
			vm.Addresses = append(vm.Addresses, addr.String())
		}
		return addr.String()
	}
	for i, nic := range in.NetworkInterfaces {
		ipv4, ipv6 := add(nic.NetworkIP), add(nic.Ipv6Address)
		if i == 0 {
			vm.IPv4, vm.IPv6 = ipv4, ipv6
		}
		for _, access := range slices.Concat(nic.AccessConfigs, nic.Ipv6AccessConfigs) {
			add(access.NatIP)
			if external := add(access.ExternalIpv6); i == 0 && vm.IPv6 == "" {
				vm.IPv6 = external
			}
		}
	}
	if !vm.State.Alive() {
		vm.EndReason = infra.OneLine(in.StatusMessage, infra.MaxMessage)
	}
	return vm
}

// itemRequest is the metadata item with the digest of the create request.
const itemRequest = contract.Prefix + "request"

// Labels that List filters by.
const (
	labelCluster = contract.Prefix + infra.TagCluster
	labelShard   = contract.Prefix + infra.TagShard
)

// encodeTags returns the labels of a VM and its disks, and the metadata items of the VM. They depend only on t. A value
// that is not valid for a label is stored in a metadata item with the same key.
func encodeTags(t infra.Tags) (labels, items map[string]string, err error) {
	labels, items = map[string]string{}, map[string]string{}
	for name, value := range t.Values() {
		if name == infra.TagInstanceID && t.Instance.IsZero() {
			continue // the VMs of a batch
		}
		key := contract.Prefix + name
		err := contract.CheckLabel(key, value)
		switch {
		case err == nil:
			labels[key] = value
		case key == labelCluster || key == labelShard:
			return nil, nil, err
		default:
			items[key] = value
		}
	}
	return labels, items, nil
}

// decodeTags parses the labels and metadata of a VM. It leaves out values that cannot be parsed and lists them in the
// warning.
func decodeTags(in *compute.Instance) (t infra.Tags, warning string) {
	t, warning = infra.ParseTags(func(name string) string {
		label, ok := in.Labels[contract.Prefix+name]
		switch {
		case ok:
			return label
		case name == infra.TagInstanceID:
			return in.Name // of a VM of a batch
		}
		return item(in, contract.Prefix+name)
	})
	if id, err := ident.ParseID(in.Name); err == nil && t.Instance.IsZero() {
		t.Instance = id // The label was changed, but the name cannot be.
	}
	return t, warning
}

// item returns the value of a metadata item, or "".
func item(in *compute.Instance, key string) string {
	if in.Metadata != nil {
		for _, i := range in.Metadata.Items {
			if i.Key == key && i.Value != nil {
				return *i.Value
			}
		}
	}
	return ""
}

// maxUserdata is the maximum size of a metadata item in bytes.
// https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations
const maxUserdata = 256 << 10

// instance returns the Compute Engine instance that the insert for a create request sends. It depends only on the
// request with its digest, and the configuration.
func (p *Provider) instance(req infra.CreateRequest, digest string) (*compute.Instance, error) {
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
	items[itemRequest] = digest
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
