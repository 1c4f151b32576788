package gcp

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// Call is one Compute Engine API call that the provider makes.
type Call struct {
	Method      string   // such as compute.instances.insert
	Permissions []string // the IAM permissions that the call needs
	When        string   // when the provider makes the call, in words
}

// Calls lists all API calls that the provider makes, with the permissions that the server's role needs for each.
//
// Source: the section IAM Permissions of each method in https://cloud.google.com/compute/docs/reference/rest/v1.
var Calls = []Call{
	{"compute.instances.insert", toCreate,
		"an instance is made (iam.serviceAccounts.actAs on the service account that args name)"},
	{"compute.instances.bulkInsert", toCreate, "many instances are made with one call"},
	{"compute.instances.delete", []string{"compute.instances.delete"}, "an instance is deleted"},
	{"compute.instances.stop", []string{"compute.instances.stop"}, "a spare is put to sleep as stopped"},
	{"compute.instances.suspend", []string{"compute.instances.suspend"}, "a spare is put to sleep as suspended"},
	{"compute.instances.start", []string{"compute.instances.start"}, "a stopped spare is woken"},
	{"compute.instances.resume", []string{"compute.instances.resume"}, "a suspended spare is woken"},
	{"compute.instances.get", []string{"compute.instances.get"},
		"instances are looked up; the leader's address is taken or checked; a lock holder's state"},
	{"compute.instances.list", []string{"compute.instances.list"},
		"instances are listed; the holder of the leader's alias address is looked up"},
	{"compute.instances.getSerialPortOutput", []string{"compute.instances.getSerialPortOutput"},
		"an operator reads the console of an instance"},
	{"compute.instances.setMetadata", []string{"compute.instances.setMetadata", "iam.serviceAccounts.actAs"},
		"an agent has registered: the userdata is removed"},
	{"compute.instances.updateNetworkInterface", []string{"compute.instances.updateNetworkInterface",
		"compute.subnetworks.use"},
		"the leader's alias address is taken from its holder, taken, or given up"},
	{"compute.zoneOperations.wait", []string{"compute.zoneOperations.get"}, "a change is awaited"},
	{"compute.zoneOperations.list", []string{"compute.zoneOperations.list"},
		"a lock holder's machine is not found; an old create is repeated; a spare is put to sleep or woken"},
	{"compute.instanceGroups.addInstances", []string{"compute.instanceGroups.update", "compute.instances.use"},
		"an instance becomes healthy"},
	{"compute.instanceGroups.removeInstances", []string{"compute.instanceGroups.update", "compute.instances.use"},
		"an instance is drained or gone"},
	{"compute.instanceGroups.listInstances", []string{"compute.instanceGroups.list"},
		"instance groups are checked; an instance is drained or gone"},
	{"compute.regionBackendServices.get", []string{"compute.regionBackendServices.get"},
		"an instance is drained: how long a backend service lets it finish its requests"},
	{"compute.regionBackendServices.getHealth", []string{"compute.regionBackendServices.get"},
		"a template has load_balancer_health"},
	{"compute.images.list", []string{"compute.images.list"}, "images are looked up"},
	{"compute.machineTypes.get", []string{"compute.machineTypes.get"},
		"an operator asks for the size of a machine type"},
	{"compute.subnetworks.get", []string{"compute.subnetworks.get"},
		"subnets are checked at start and on change; their room, every collection interval"},
}

// toCreate are the permissions to make an instance.
var toCreate = []string{"compute.instances.addResourcePolicies", "compute.instances.create",
	"compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.setServiceAccount",
	"compute.instances.setTags", "compute.disks.addResourcePolicies", "compute.disks.create",
	"compute.disks.setLabels", "compute.disks.useReadOnly", "compute.images.useReadOnly",
	"compute.resourcePolicies.use", "compute.snapshots.useReadOnly", "compute.storagePools.use",
	"compute.subnetworks.use", "compute.subnetworks.useExternalIp", "iam.serviceAccounts.actAs"}

// client makes the provider's API calls. After an error that may be temporary, it repeats a call if the call only reads
// or has a requestId.
type client struct {
	service       *compute.Service
	project, zone string
	sleep         func(context.Context, time.Duration) error
}

func newClient(ctx context.Context, cfg Config) (client, error) {
	access := cfg.Access
	access.Client = cfg.httpClient()
	service, err := compute.NewService(context.WithoutCancel(ctx), access.Options("compute")...)
	if err != nil {
		return client{}, fmt.Errorf("make the Compute Engine client: %w", err)
	}
	return client{service, cfg.Project, cfg.Zone, cfg.Sleep}, nil
}

// repeat sends a request that is safe to repeat, and repeats it after an error that may be temporary.
func repeat[T any](ctx context.Context, call interface {
	Do(opts ...googleapi.CallOption) (T, error)
}) (T, error) {
	return googlecloud.Repeat(ctx, func() (T, error) { return call.Do() })
}

// readAll reads all pages of a list. The function page returns the entries of a page, and the token of the next page.
func readAll[C interface {
	PageToken(token string) C
	Do(opts ...googleapi.CallOption) (P, error)
}, P, T any](ctx context.Context, call C, page func(P) (entries []T, next string)) (all []T, err error) {
	for token, more := "", true; more; more = token != "" {
		answer, err := repeat(ctx, call.PageToken(token))
		if err != nil {
			return nil, err
		}
		var entries []T
		entries, token = page(answer)
		all = append(all, entries...)
	}
	return all, nil
}

// change sends a request for a change, and waits until the change has ended.
func (c client) change(ctx context.Context, call interface {
	Do(opts ...googleapi.CallOption) (*compute.Operation, error)
}) error {
	op, err := call.Do()
	if err != nil {
		return err
	}
	return c.wait(ctx, op)
}

// insert sends the request for an instance. If it fails, doubtful reports whether one of the attempts may still have
// had an effect.
func (c client) insert(ctx context.Context, in *compute.Instance, requestID string) (op *compute.Operation,
	doubtful bool, err error) {
	return insertOnce(ctx, func(ctx context.Context) (*compute.Operation, error) {
		return c.service.Instances.Insert(c.project, c.zone, in).RequestId(requestID).Context(ctx).Do()
	})
}

// bulkInsert is [client.insert] for many instances.
func (c client) bulkInsert(ctx context.Context, in *compute.BulkInsertInstanceResource, requestID string) (
	op *compute.Operation, doubtful bool, err error) {
	return insertOnce(ctx, func(ctx context.Context) (*compute.Operation, error) {
		return c.service.Instances.BulkInsert(c.project, c.zone, in).RequestId(requestID).Context(ctx).Do()
	})
}

// insertOnce sends a request with a requestId, and repeats it after an error that may be temporary.
func insertOnce(ctx context.Context, send func(context.Context) (*compute.Operation, error)) (op *compute.Operation,
	doubtful bool, err error) {
	op, err = googlecloud.Repeat(ctx, func() (*compute.Operation, error) {
		ctx, sent := googlecloud.WithSent(ctx)
		op, err := send(ctx)
		if status := googlecloud.StatusOf(err); err != nil && sent.Load() && (status == 0 || status >= 500) {
			doubtful = true
		}
		return op, err
	})
	return op, doubtful, err
}

// console returns what an instance has written to its serial port 1. Compute Engine keeps the last megabyte.
func (c client) console(ctx context.Context, nameOrID string) (*compute.SerialPortOutput, error) {
	return repeat(ctx, c.service.Instances.GetSerialPortOutput(c.project, c.zone, nameOrID).Context(ctx))
}

func (c client) delete(ctx context.Context, id string) error {
	_, err := repeat(ctx, c.service.Instances.Delete(c.project, c.zone, id).Context(ctx))
	return err
}

// stop begins to stop an instance, and suspend to suspend it. Google wants to know what becomes of the data of local
// SSDs only of an instance that has some.
func (c client) stop(ctx context.Context, id string, localSSDs bool) (*compute.Operation, error) {
	call := c.service.Instances.Stop(c.project, c.zone, id).Context(ctx)
	if localSSDs {
		call.DiscardLocalSsd(true)
	}
	return call.Do()
}

func (c client) suspend(ctx context.Context, id string, localSSDs bool) (*compute.Operation, error) {
	call := c.service.Instances.Suspend(c.project, c.zone, id).Context(ctx)
	if localSSDs {
		call.DiscardLocalSsd(false)
	}
	return call.Do()
}

func (c client) start(ctx context.Context, id string) error {
	return c.change(ctx, c.service.Instances.Start(c.project, c.zone, id).Context(ctx))
}

func (c client) resume(ctx context.Context, id string) error {
	return c.change(ctx, c.service.Instances.Resume(c.project, c.zone, id).Context(ctx))
}

// get describes an instance by its name or numeric ID.
func (c client) get(ctx context.Context, nameOrID string) (*compute.Instance, error) {
	return repeat(ctx, c.service.Instances.Get(c.project, c.zone, nameOrID).Context(ctx))
}

// list returns all instances that match the filter.
func (c client) list(ctx context.Context, filter string) ([]*compute.Instance, error) {
	call := c.service.Instances.List(c.project, c.zone).Context(ctx)
	if filter != "" {
		call.Filter(filter)
	}
	return readAll(ctx, call, func(page *compute.InstanceList) ([]*compute.Instance, string) {
		return page.Items, page.NextPageToken
	})
}

// operations returns all operations in the zone that match the filter.
func (c client) operations(ctx context.Context, filter string) ([]*compute.Operation, error) {
	return readAll(ctx, c.service.ZoneOperations.List(c.project, c.zone).Filter(filter).Context(ctx),
		func(page *compute.OperationList) ([]*compute.Operation, string) {
			return page.Items, page.NextPageToken
		})
}

// soonest and latest are the first and the longest pause between two wait calls for an operation. Each pause is twice
// as long as the one before. The pauses are necessary because Google may answer a wait call immediately, although the
// operation still runs.
const soonest, latest = 100 * time.Millisecond, 2 * time.Second

// wait waits until an operation has ended. If the operation failed, wait returns its error.
func (c client) wait(ctx context.Context, op *compute.Operation) error {
	for tries := 1; op.Status != "DONE"; tries++ {
		next, err := repeat(ctx, c.service.ZoneOperations.Wait(c.project, c.zone, op.Name).Context(ctx))
		if err != nil {
			return &waitError{err}
		}
		if op = next; op.Status == "DONE" {
			break
		}
		if err := c.sleep(ctx, reconnect.Backoff(soonest, latest, tries)); err != nil {
			return &waitError{err}
		}
	}
	return failureOf(op)
}

// waitForStatus waits until an instance has another status than before. If the operation that is to change the status
// has failed before that, waitForStatus returns its error.
func (c client) waitForStatus(ctx context.Context, op *compute.Operation, id, before string) error {
	for tries := 1; op.Status != "DONE"; tries++ {
		found, err := c.get(ctx, id)
		if err != nil {
			return &waitError{err}
		}
		if found.Status != before {
			return nil
		}
		if err := c.sleep(ctx, reconnect.Backoff(soonest, latest, tries)); err != nil {
			return &waitError{err}
		}
		// A wait call would block for minutes.
		ops, err := c.operations(ctx, fmt.Sprintf("name = %q", op.Name))
		if err != nil {
			return &waitError{err}
		}
		if len(ops) == 1 {
			op = ops[0]
		}
	}
	return failureOf(op)
}

func (c client) setMetadata(ctx context.Context, instance string, metadata *compute.Metadata) error {
	return c.change(ctx, c.service.Instances.SetMetadata(c.project, c.zone, instance, metadata).Context(ctx))
}

func (c client) updateInterface(ctx context.Context, instance string, nic *compute.NetworkInterface) error {
	return c.change(ctx, c.service.Instances.UpdateNetworkInterface(c.project, c.zone, instance, nic.Name, nic).
		Context(ctx))
}

func (c client) groupMembers(ctx context.Context, group string) (links []string, err error) {
	all, err := readAll(ctx, c.service.InstanceGroups.ListInstances(c.project, c.zone, group,
		&compute.InstanceGroupsListInstancesRequest{InstanceState: "ALL"}).Context(ctx),
		func(page *compute.InstanceGroupsListInstances) ([]*compute.InstanceWithNamedPorts, string) {
			return page.Items, page.NextPageToken
		})
	for _, member := range all {
		links = append(links, member.Instance)
	}
	return links, err
}

func (c client) addToGroup(ctx context.Context, group, link string) error {
	return c.change(ctx, c.service.InstanceGroups.AddInstances(c.project, c.zone, group,
		&compute.InstanceGroupsAddInstancesRequest{Instances: []*compute.InstanceReference{{Instance: link}}}).
		Context(ctx))
}

func (c client) removeFromGroup(ctx context.Context, group, link string) error {
	return c.change(ctx, c.service.InstanceGroups.RemoveInstances(c.project, c.zone, group,
		&compute.InstanceGroupsRemoveInstancesRequest{Instances: []*compute.InstanceReference{{Instance: link}}}).
		Context(ctx))
}

// backendService describes a regional backend service.
func (c client) backendService(ctx context.Context, name string) (*compute.BackendService, error) {
	return googlecloud.Repeat(ctx, func() (*compute.BackendService, error) {
		return c.service.RegionBackendServices.Get(c.project, regionOf(c.zone), name).Context(ctx).Do()
	})
}

// groupHealth asks a regional backend service for the health of the members of an instance group.
func (c client) groupHealth(ctx context.Context, service, group string) ([]*compute.HealthStatus, error) {
	of := &compute.ResourceGroupReference{Group: "https://www.googleapis.com/compute/v1/projects/" + c.project +
		"/zones/" + c.zone + "/instanceGroups/" + group}
	health, err := repeat(ctx, c.service.RegionBackendServices.GetHealth(c.project, regionOf(c.zone), service, of).
		Context(ctx))
	if err != nil {
		return nil, err
	}
	return health.HealthStatus, nil
}

func (c client) images(ctx context.Context, project string) ([]*compute.Image, error) {
	return readAll(ctx, c.service.Images.List(project).Context(ctx),
		func(page *compute.ImageList) ([]*compute.Image, string) { return page.Items, page.NextPageToken })
}

func (c client) machineType(ctx context.Context, name string) (*compute.MachineType, error) {
	return repeat(ctx, c.service.MachineTypes.Get(c.project, c.zone, name).Context(ctx))
}

// getSubnet describes a subnet, including the used part of its ranges.
func (c client) getSubnet(ctx context.Context, path string) (*compute.Subnetwork, error) {
	return repeat(ctx, c.service.Subnetworks.Get(pathPart(path, "projects"), pathPart(path, "regions"),
		pathPart(path, "subnetworks")).Views("WITH_UTILIZATION").Context(ctx))
}
