package aws

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Create implements infra.Provider with RunInstances. The instance's ID is the client token.
func (p *Provider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	if req.Tags.Instance.IsZero() {
		return infra.VM{}, refused("create", "no instance ID")
	}
	what := "create " + req.Tags.Instance.String()
	in, err := runInstances(req, p.cfg.Zone)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, what, err)
	}
	out, err := p.run(ctx, what, req, in)
	if err != nil {
		return infra.VM{}, err
	}
	if len(out.Instances) != 1 {
		return infra.VM{}, infra.Errorf(infra.Indeterminate, what, "RunInstances answered %d instances",
			len(out.Instances))
	}
	vm, asked := p.describe(out.Instances[0]), req.Tags
	asked.CreatedAt = asked.CreatedAt.Round(0).UTC() // normalized as decodeTags returns it
	switch {
	case ending(vm.State):
		// The client token belongs to an earlier call. EC2 repeats its answer to that call for as long as it remembers
		// the instance, even after the instance was terminated.
		return infra.VM{}, infra.Errorf(infra.Conflict, what, "%s of this request was terminated", vm.ProviderID)
	case len(out.Instances[0].Tags) == 0:
		vm.Tags, vm.Warning = asked, "" // the answer holds no tags
	case vm.Tags != asked:
		return infra.VM{}, infra.Errorf(infra.Conflict, what, "%s was made before with other tags", vm.ProviderID)
	}
	return vm, nil
}

// Delete implements infra.Provider with DescribeInstances and TerminateInstances.
func (p *Provider) Delete(ctx context.Context, vm infra.VM) error {
	providerID, what := vm.ProviderID, "delete "+vm.ProviderID
	instance, err := p.instance(ctx, what, providerID)
	switch {
	case infra.ClassOf(err) == infra.NotFound:
		return nil
	case err != nil:
		return err
	case stateOf(instance) == infra.Deleted:
		return nil // a terminated instance loses its tags after a while
	}
	if err := infra.CheckOwned(what, p.describe(instance).Tags, vm.Tags); err != nil {
		return err
	}
	_, err = call(ctx, what, "TerminateInstances", p.cfg.EC2.TerminateInstances,
		&ec2.TerminateInstancesInput{InstanceIds: []string{providerID}}, p.rates.changing)
	switch infra.ClassOf(err) {
	case infra.NotFound:
		return nil
	case infra.Denied:
		// A terminated instance loses its tags after a while. A role that may terminate only instances with the
		// cluster's tags is then denied the call. So check whether the instance has ended.
		if instance, getErr := p.instance(ctx, what, providerID); infra.ClassOf(getErr) == infra.NotFound ||
			ending(stateOf(instance)) {
			return nil
		}
	}
	return err
}

func ending(s infra.State) bool { return s == infra.Deleting || s == infra.Deleted }

// Get implements infra.Provider with DescribeInstances.
func (p *Provider) Get(ctx context.Context, providerID string) (infra.VM, error) {
	instance, err := p.instance(ctx, "get "+providerID, providerID)
	if err != nil {
		return infra.VM{}, err
	}
	return p.describe(instance), nil
}

// instance describes one instance by its ID.
func (p *Provider) instance(ctx context.Context, what, id string) (types.Instance, error) {
	out, err := call(ctx, what, "DescribeInstances", p.cfg.EC2.DescribeInstances,
		&ec2.DescribeInstancesInput{InstanceIds: []string{id}})
	if err != nil {
		return types.Instance{}, err
	}
	for _, reservation := range out.Reservations {
		for _, instance := range reservation.Instances {
			if deref(instance.InstanceId) == id {
				return instance, nil
			}
		}
	}
	return types.Instance{}, infra.Errorf(infra.NotFound, what, "DescribeInstances knows no such instance")
}

// List implements infra.Provider. It reads all pages of DescribeInstances, filtered by tags. EC2 lists terminated
// instances for about an hour.
func (p *Provider) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	return p.list(ctx, "list", append(ofOwner(owner), filter("tag:"+tagManaged, managed))...)
}

// FindByInstance implements infra.Provider with a filter by tag. Several VMs match if a person copied tags.
// FindByInstance then returns the youngest live VM, or the youngest VM if none is alive.
func (p *Provider) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	what := "find " + id.String()
	vms, err := p.list(ctx, what, append(ofOwner(owner),
		filter("tag:"+tagPrefix+infra.TagInstanceID, id.String(), id.Batch().String()))...)
	if err != nil {
		return infra.VM{}, err
	}
	vms = slices.DeleteFunc(vms, func(vm infra.VM) bool { return vm.Tags.Instance != id }) // others of the batch
	if len(vms) == 0 {
		return infra.VM{}, infra.Errorf(infra.NotFound, what, "DescribeInstances knows no instance with this tag")
	}
	return slices.MaxFunc(vms, func(a, b infra.VM) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.LaunchedAt.Compare(b.LaunchedAt),
			cmp.Compare(a.ProviderID, b.ProviderID))
	}), nil
}

func rank(vm infra.VM) int {
	if vm.State.Alive() {
		return 1
	}
	return 0
}

// list describes all matching instances, sorted by ID. The list is complete, or list returns an error.
func (p *Provider) list(ctx context.Context, what string, filters ...types.Filter) ([]infra.VM, error) {
	pages := ec2.NewDescribeInstancesPaginator(p.cfg.EC2, &ec2.DescribeInstancesInput{Filters: filters,
		MaxResults: sdk.Int32(p.cfg.PageSize)})
	var vms []infra.VM
	err := readPages(ctx, what, "DescribeInstances", pages, func(page *ec2.DescribeInstancesOutput) {
		for _, reservation := range page.Reservations {
			for _, instance := range reservation.Instances {
				vms = append(vms, p.describe(instance))
			}
		}
	})
	return infra.SortVMs(vms), err
}

// ofOwner returns the filters that match an owner's resources.
func ofOwner(owner infra.Owner) []types.Filter {
	return []types.Filter{filter("tag:"+tagPrefix+infra.TagCluster, owner.Cluster),
		filter("tag:"+tagPrefix+infra.TagShard, owner.Shard)}
}

// filter returns a filter that matches values literally. EC2's filters would interpret wildcards.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html
func filter(name string, values ...string) types.Filter {
	f := types.Filter{Name: sdk.String(name)}
	for _, value := range values {
		f.Values = append(f.Values, strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`).Replace(value))
	}
	return f
}

// ReadConsole implements infra.VMConsoles. EC2 keeps the console of a terminated instance for about an hour.
func (p *Provider) ReadConsole(ctx context.Context, vm infra.VM) ([]byte, error) {
	ctx, tries := withAttempts(ctx)
	out, err := readConsole(ctx, p.cfg.EC2, &vm.ProviderID)
	return []byte(out), classify("read the console of "+vm.ProviderID, "GetConsoleOutput", tries, err)
}

// MachineState implements infra.MachineEvidence. EC2 never reuses instance IDs.
func (p *Provider) MachineState(ctx context.Context, machineID string) (infra.State, error) {
	instance, err := p.instance(ctx, "look up machine "+machineID, machineID)
	if err != nil {
		return "", err
	}
	return stateOf(instance), nil
}

// stateOf translates an instance's state.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html
func stateOf(instance types.Instance) infra.State {
	if instance.State == nil {
		return infra.Unknown
	}
	switch instance.State.Name {
	case types.InstanceStateNamePending:
		return infra.Pending
	case types.InstanceStateNameRunning:
		return infra.Running
	case types.InstanceStateNameStopping:
		return infra.Stopping
	case types.InstanceStateNameStopped:
		return infra.Stopped
	case types.InstanceStateNameShuttingDown:
		return infra.Deleting
	case types.InstanceStateNameTerminated:
		return infra.Deleted
	default:
		return infra.Unknown
	}
}

// describe translates an instance to an infra.VM.
func describe(instance types.Instance) infra.VM {
	vm := infra.VM{ProviderID: deref(instance.InstanceId), State: stateOf(instance),
		IPv4: deref(instance.PrivateIpAddress), IPv6: deref(instance.Ipv6Address),
		Hostname: deref(instance.PrivateDnsName), LaunchedAt: deref(instance.LaunchTime)}
	vm.Addresses = vmAddresses(instance)
	vm.Tags, vm.Warning = decodeTags(instance)
	if vm.IPv6 == "" {
		if i := slices.IndexFunc(instance.NetworkInterfaces, func(n types.InstanceNetworkInterface) bool {
			return n.Attachment == nil || deref(n.Attachment.DeviceIndex) == 0
		}); i >= 0 && len(instance.NetworkInterfaces[i].Ipv6Addresses) > 0 {
			vm.IPv6 = deref(instance.NetworkInterfaces[i].Ipv6Addresses[0].Ipv6Address)
		}
	}
	if len(instance.NetworkInterfaces) > 0 {
		vm.Account = deref(instance.NetworkInterfaces[0].OwnerId)
	}
	vm.EndReason = infra.OneLine(endedBy(instance), infra.MaxMessage)
	return vm
}

// vmAddresses returns the addresses of all network interfaces of an instance.
func vmAddresses(instance types.Instance) (out []string) {
	add := func(text *string) {
		if addr, err := netip.ParseAddr(deref(text)); err == nil && !slices.Contains(out, addr.String()) {
			out = append(out, addr.String())
		}
	}
	add(instance.PrivateIpAddress)
	add(instance.PublicIpAddress)
	add(instance.Ipv6Address)
	for _, nic := range instance.NetworkInterfaces {
		for _, private := range nic.PrivateIpAddresses {
			add(private.PrivateIpAddress)
			if private.Association != nil {
				add(private.Association.PublicIp)
			}
		}
		for _, ipv6 := range nic.Ipv6Addresses {
			add(ipv6.Ipv6Address)
		}
	}
	return out
}

// endedBy returns the reason why an instance ended, such as a spot interruption or a failed launch. It returns "" if a
// user or the instance itself requested the end.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
func endedBy(instance types.Instance) string {
	reason := instance.StateReason
	if reason == nil || stateOf(instance).Alive() || strings.HasPrefix(deref(reason.Code), "Client.User") ||
		strings.HasPrefix(deref(reason.Code), "Client.Instance") {
		return ""
	}
	return deref(cmp.Or(reason.Message, reason.Code))
}

// maxUserdata is the maximum size of userdata in bytes, before it is encoded.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html
const maxUserdata = 16 << 10

// runInstances makes the request for one VM.
func runInstances(req infra.CreateRequest, zone string) (*ec2.RunInstancesInput, error) {
	return launch(req, zone, req.Tags.Instance.String(), 1)
}

// launch makes the request for one or more VMs. key is the client token and the tag for the instance ID. The request
// depends only on the arguments: EC2 answers a repeated client token with the same VMs only if all other parameters are
// the same too.
func launch(req infra.CreateRequest, zone, key string, count int) (*ec2.RunInstancesInput, error) {
	if req.InstanceType == "" || req.Subnet == "" {
		return nil, fmt.Errorf("instance type %q, subnet %q: both are needed", req.InstanceType, req.Subnet)
	}
	in, err := decodeArgs(req.Args)
	if err != nil {
		return nil, err
	}
	if in.ImageId == nil && in.LaunchTemplate == nil {
		return nil,
			fmt.Errorf(
				"args.ImageId: is missing; a template such as {{ .Image.name }} takes it from the shard's images")
	}
	userdata, err := encodeUserdata(req.Userdata)
	if err != nil {
		return nil, err
	}
	in.MinCount, in.MaxCount = sdk.Int32(1), sdk.Int32(int32(count))
	in.ClientToken = sdk.String(key)
	in.InstanceType = types.InstanceType(req.InstanceType)
	in.UserData = userdata
	place(in, req.Subnet, zone)

	if in.MetadataOptions == nil {
		in.MetadataOptions = &types.InstanceMetadataOptionsRequest{}
	}
	in.MetadataOptions.HttpTokens = types.HttpTokensStateRequired
	in.MetadataOptions.HttpEndpoint = types.InstanceMetadataEndpointStateEnabled
	if in.MetadataOptions.HttpPutResponseHopLimit == nil {
		// Containers on the VM are one network hop further away. With a limit of one hop, they cannot read the userdata
		// with the nonce.
		in.MetadataOptions.HttpPutResponseHopLimit = sdk.Int32(1)
	}
	if in.InstanceInitiatedShutdownBehavior == "" {
		// If a VM shuts down, EC2 must terminate it. The leader creates a replacement in any case, and a VM that is
		// only stopped would still cost money.
		in.InstanceInitiatedShutdownBehavior = types.ShutdownBehaviorTerminate
	}
	if req.Sleep == config.SparesSuspended {
		in.HibernationOptions = &types.HibernationOptionsRequest{Configured: sdk.Bool(true)}
	}
	if req.Tags.Spot {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot,
			SpotOptions: &types.SpotMarketOptions{SpotInstanceType: types.SpotInstanceTypeOneTime,
				InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate}}
	}
	spot := in.InstanceMarketOptions != nil && in.InstanceMarketOptions.MarketType == types.MarketTypeSpot
	in.TagSpecifications, err = tagSpecifications(encodeTags(req.Tags, key), in.TagSpecifications, spot)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// place puts the instance into the subnet. It sets the zone too, so that EC2 refuses a subnet of another zone. A client
// token is valid in one zone only, so all calls of a shard must be for the same zone.
// https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html#run-instances-idempotency
func place(in *ec2.RunInstancesInput, subnet, zone string) {
	if in.Placement == nil {
		in.Placement = &types.Placement{}
	}
	in.Placement.AvailabilityZone = sdk.String(zone)
	if len(in.NetworkInterfaces) == 0 {
		in.SubnetId = sdk.String(subnet)
		return
	}
	// If the request has network interfaces, EC2 requires the subnet in the interfaces, not in the instance.
	if first := &in.NetworkInterfaces[primaryInterface(in.NetworkInterfaces)]; first.DeviceIndex == nil {
		first.DeviceIndex = sdk.Int32(0)
	}
	for i := range in.NetworkInterfaces {
		if in.NetworkInterfaces[i].SubnetId == nil {
			in.NetworkInterfaces[i].SubnetId = sdk.String(subnet)
		}
	}
}

// primaryInterface returns the position of the interface with device index 0, or 0 if no interface has it. The checks
// of args guarantee that an interface has index 0, or that the first interface has no index.
func primaryInterface(list []types.InstanceNetworkInterfaceSpecification) int {
	i := slices.IndexFunc(list, func(n types.InstanceNetworkInterfaceSpecification) bool {
		return n.DeviceIndex != nil && *n.DeviceIndex == 0
	})
	return max(i, 0)
}

// encodeUserdata encodes userdata in base64 for the API. If the configuration has encoded the userdata already
// (encoding base64 or gzip+base64), encodeUserdata does not encode it again. Userdata that is valid base64 is already
// encoded: all other forms that cloud-init knows have a # or a : in their first line.
func encodeUserdata(userdata []byte) (*string, error) {
	if len(userdata) == 0 {
		return nil, nil //nolint:nilnil // no userdata is a possible answer
	}
	raw := userdata
	if decoded, err := base64.StdEncoding.Strict().DecodeString(string(userdata)); err == nil {
		raw = decoded
	}
	if len(raw) > maxUserdata {
		return nil, fmt.Errorf("userdata: %d bytes, EC2 takes at most %d", len(raw), maxUserdata)
	}
	return sdk.String(base64.StdEncoding.EncodeToString(raw)), nil
}

// decodeArgs returns a request with the values of rendered args. The error lists all problems, each with its path.
func decodeArgs(args map[string]any) (*ec2.RunInstancesInput, error) {
	in := &ec2.RunInstancesInput{}
	decoded, found := contract.DecodeArgs(args, false)
	if err := infra.DecodeArgs(decoded, found, in); err != nil {
		return nil, err
	}
	return in, nil
}

// deref returns the value that p points to, or the zero value if p is nil.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Tags of every resource that the provider makes, besides the tags of [infra.Tags.Values]. IAM policies and cost
// reports use these names.
const (
	tagPrefix  = contract.TagPrefix
	tagManaged = tagPrefix + "managed"
	tagName    = "Name" // shown in the console; args may set another value
	managed    = "true"
)

// maxTags is the maximum number of tags of one resource.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
const maxTags = 50

// encodeTags returns the tags of VMs whose tag for the instance ID is key. They depend only on t and key, so that a
// repeated request has the same bytes.
func encodeTags(t infra.Tags, key string) map[string]string {
	tags := map[string]string{tagManaged: managed, tagName: key}
	for name, value := range t.Values() {
		tags[tagPrefix+name] = value
	}
	tags[tagPrefix+infra.TagInstanceID] = key
	return tags
}

// decodeTags parses the tags of a VM. It leaves out values that cannot be parsed and lists them in the warning. The tag
// for the instance ID of a VM of a batch is the batch, and the launch index says which of its IDs the VM has. A person
// can copy the tag to another instance, but not the client token, so both must name the batch.
func decodeTags(instance types.Instance) (t infra.Tags, warning string) {
	tags := make(map[string]string, len(instance.Tags))
	for _, tag := range instance.Tags {
		tags[deref(tag.Key)] = deref(tag.Value)
	}
	const key = tagPrefix + infra.TagInstanceID
	if _, err := ident.ParseBatch(tags[key]); err == nil && tags[key] == deref(instance.ClientToken) {
		tags[key] = madeAs(instance).String()
	}
	t, warning = infra.ParseTags(func(name string) string { return tags[tagPrefix+name] })
	if t.Instance.IsZero() && tags[key] == "" {
		t.Instance = madeAs(instance) // a person may have removed the tag
	}
	return t, warning
}

// tagSpecifications returns the tags to set together with the instance. Every resource in ourResources gets the
// provider's tags, and also the tags in args. If both set a tag, the provider's value takes precedence, except for the
// tag Name. The order is deterministic.
func tagSpecifications(mine map[string]string, fromArgs []types.TagSpecification, spot bool) ([]types.TagSpecification,
	error) {
	resources := slices.Clone(ourResources)
	if !spot {
		resources = resources[:len(resources)-1]
	}
	byResource := map[types.ResourceType]map[string]string{}
	for _, resource := range resources {
		byResource[resource] = map[string]string{tagName: mine[tagName]}
	}
	// A spot request has the tags of its instance, unless args have others for it.
	if spot && !slices.ContainsFunc(fromArgs, ofResource(types.ResourceTypeSpotInstancesRequest)) {
		if i := slices.IndexFunc(fromArgs, ofResource(types.ResourceTypeInstance)); i >= 0 {
			fromArgs = append(slices.Clone(fromArgs), types.TagSpecification{
				ResourceType: types.ResourceTypeSpotInstancesRequest, Tags: fromArgs[i].Tags})
		}
	}
	for _, spec := range fromArgs {
		if byResource[spec.ResourceType] == nil {
			byResource[spec.ResourceType] = map[string]string{}
			resources = append(resources, spec.ResourceType)
		}
		for _, tag := range spec.Tags {
			byResource[spec.ResourceType][deref(tag.Key)] = deref(tag.Value)
		}
	}
	var out []types.TagSpecification
	for _, resource := range resources {
		tags := byResource[resource]
		if slices.Contains(ourResources, resource) {
			for key, value := range mine {
				if key != tagName {
					tags[key] = value
				}
			}
		}
		if len(tags) > maxTags {
			return nil, fmt.Errorf("%d tags on %s, at most %d are possible", len(tags), resource, maxTags)
		}
		spec := types.TagSpecification{ResourceType: resource}
		for key, value := range tags {
			if err := contract.CheckTag(key, value); err != nil {
				return nil, err
			}
			spec.Tags = append(spec.Tags, types.Tag{Key: &key, Value: &value})
		}
		slices.SortFunc(spec.Tags, func(a, b types.Tag) int { return cmp.Compare(*a.Key, *b.Key) })
		if len(spec.Tags) > 0 {
			out = append(out, spec)
		}
	}
	return out, nil
}

// ofResource returns a function that reports whether a specification is for a type of resource.
func ofResource(kind types.ResourceType) func(types.TagSpecification) bool {
	return func(spec types.TagSpecification) bool { return spec.ResourceType == kind }
}

// ourResources lists the resources that a create makes and tags. The last resource exists for spot instances only.
var ourResources = []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume,
	types.ResourceTypeNetworkInterface, types.ResourceTypeSpotInstancesRequest}
