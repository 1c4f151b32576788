package compute_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	api "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

const (
	project = "p"
	zone    = "us-central1-a"
	subnet  = "projects/p/regions/us-central1/subnetworks/servers"
)

type cloud struct {
	*testing.T
	*compute.Compute
	server *rest.Server
	client *api.Service
	now    time.Time
}

func start(t *testing.T) *cloud {
	c := &cloud{T: t, Compute: compute.New(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	c.Now = func() time.Time { return c.now }
	c.AddZone(project, zone)
	c.AddImage("debian-cloud", "debian-12-v1", "debian-12")
	c.Do(func() {
		c.Put(subnet, compute.JSON(`{"ipCidrRange": "10.0.0.0/29", "network": "projects/p/global/networks/n",
			"secondaryIpRanges": [{"rangeName": "leader", "ipCidrRange": "10.9.0.0/28"}]}`))
	})
	var err error
	if c.server, err = rest.New("compute", "v1", c.Handlers(), nil); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(c.server)
	t.Cleanup(web.Close)
	if c.client, err = api.NewService(t.Context(), option.WithEndpoint(web.URL+"/compute/v1/"),
		option.WithoutAuthentication()); err != nil {
		t.Fatal(err)
	}
	return c
}

func instance(name string) *api.Instance {
	return &api.Instance{Name: name, MachineType: "projects/p/zones/us-central1-a/machineTypes/e2-small",
		Labels: map[string]string{"group": "workers"},
		Disks: []*api.AttachedDisk{{Boot: true, AutoDelete: true, InitializeParams: &api.AttachedDiskInitializeParams{
			SourceImage: "projects/debian-cloud/global/images/family/debian-12"}}},
		NetworkInterfaces: []*api.NetworkInterface{{Subnetwork: subnet}}}
}

// insert inserts an instance and waits for the operation.
func (c *cloud) insert(in *api.Instance, requestID string) *api.Operation {
	c.Helper()
	op, err := c.client.Instances.Insert(project, zone, in).RequestId(requestID).Do()
	if err != nil {
		c.Fatal(err)
	}
	if op.Status != "RUNNING" {
		c.Errorf("a new operation is %s", op.Status)
	}
	return c.wait(op, nil)
}

func (c *cloud) wait(op *api.Operation, err error) *api.Operation {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
	if op, err = c.client.ZoneOperations.Wait(project, zone, op.Name).Do(); err != nil || op.Status != "DONE" {
		c.Fatalf("operation %+v, %v", op, err)
	}
	return op
}

func (c *cloud) get(name string) *api.Instance {
	c.Helper()
	vm, err := c.client.Instances.Get(project, zone, name).Do()
	if err != nil {
		c.Fatal(err)
	}
	return vm
}

func (c *cloud) wantRefused(what string, err error, code int, reason string) {
	c.Helper()
	var refusal *googleapi.Error
	if !errors.As(err, &refusal) || refusal.Code != code || refusal.Errors[0].Reason != reason {
		c.Errorf("%s: got %v, want %d %s", what, err, code, reason)
	}
}

func itoa(id uint64) string { return strconv.FormatUint(id, 10) }

func codeOf(op *api.Operation) string {
	if op.Error == nil {
		return ""
	}
	return op.Error.Errors[0].Code
}

func TestInsertFailsLateAndTheRequestIsRemembered(t *testing.T) {
	c := start(t)
	c.Fail(compute.Fault{Type: "insert", Failure: compute.Stockout(), Times: 1})
	const id = "11111111-1111-4111-8111-111111111111"
	failed := c.insert(instance("a"), id)
	if codeOf(failed) != compute.Stockout().Code || failed.HttpErrorStatusCode != 503 {
		t.Errorf("the operation is %+v", failed)
	}
	_, err := c.client.Instances.Get(project, zone, "a").Do()
	c.wantRefused("get", err, 404, "notFound")

	c.now = c.now.Add(59 * time.Minute)
	again, err := c.client.Instances.Insert(project, zone, instance("a")).RequestId(id).Do()
	if err != nil || again.Name != failed.Name || codeOf(again) == "" {
		t.Errorf("a repeat answers %+v, %v", again, err)
	}
	c.now = c.now.Add(2 * time.Minute)
	if op := c.insert(instance("a"), id); op.Name == failed.Name || codeOf(op) != "" {
		t.Errorf("an hour later: %+v", op)
	}
}

func TestNamesAreReusedAndIDsAreNot(t *testing.T) {
	c := start(t)
	c.insert(instance("a"), "")
	first := c.get("a")
	_, err := c.client.Instances.Insert(project, zone, instance("a")).Do()
	c.wantRefused("second insert", err, http.StatusConflict, "alreadyExists")
	if c.get(itoa(first.Id)).Name != "a" {
		t.Error("an instance is not found by its ID")
	}
	c.wait(c.client.Instances.Delete(project, zone, "a").Do())
	if disks, err := c.client.Disks.List(project, zone).Do(); err != nil || len(disks.Items) != 0 {
		t.Errorf("disks left: %v, %v", disks, err)
	}
	c.insert(instance("a"), "")
	if second := c.get("a"); second.Id == first.Id {
		t.Error("the ID was used again")
	}
	_, err = c.client.Instances.Get(project, zone, itoa(first.Id)).Do()
	c.wantRefused("get by the old ID", err, 404, "notFound")
	ops, err := c.client.ZoneOperations.List(project, zone).Filter(
		`(operationType = "insert") (targetId = "` + itoa(first.Id) + `")`).Do()
	if err != nil || len(ops.Items) != 1 {
		t.Errorf("inserts of the old ID: %v, %v", ops, err)
	}
}

func TestAliasIsInUseUntilTheOldInterfaceIsCleared(t *testing.T) {
	c := start(t)
	c.insert(instance("a"), "")
	c.insert(instance("b"), "")
	move := func(name string, nic *api.NetworkInterface) (*api.Operation, error) {
		return c.client.Instances.UpdateNetworkInterface(project, zone, name, "nic0", nic).Do()
	}
	alias := []*api.AliasIpRange{{IpCidrRange: "10.9.0.5/32", SubnetworkRangeName: "leader"}}
	_, err := move("a", &api.NetworkInterface{AliasIpRanges: alias})
	c.wantRefused("without fingerprint", err, 400, "required")

	old := c.get("a").NetworkInterfaces[0].Fingerprint
	if op := c.wait(move("a", &api.NetworkInterface{AliasIpRanges: alias, Fingerprint: old})); op.Error != nil {
		t.Fatal(codeOf(op))
	}
	_, err = move("a", &api.NetworkInterface{AliasIpRanges: alias, Fingerprint: old})
	c.wantRefused("with an old fingerprint", err, 412, "conditionNotMet")

	c.End("projects/p/zones/us-central1-a/instances/a", "it crashed")
	take := &api.NetworkInterface{AliasIpRanges: alias, Fingerprint: c.get("b").NetworkInterfaces[0].Fingerprint}
	if op := c.wait(move("b", take)); codeOf(op) != "IP_IN_USE_BY_ANOTHER_RESOURCE" {
		t.Errorf("taken from a stopped VM: %q", codeOf(op))
	}
	fingerprint := c.get("a").NetworkInterfaces[0].Fingerprint
	c.wait(move("a", &api.NetworkInterface{Fingerprint: fingerprint})) // the list is not named
	if len(c.get("a").NetworkInterfaces[0].AliasIpRanges) != 1 {
		t.Error("a list that the request does not name was cleared")
	}
	c.wait(move("a", &api.NetworkInterface{Fingerprint: fingerprint, ForceSendFields: []string{"AliasIpRanges"}}))
	if op := c.wait(move("b", take)); op.Error != nil {
		t.Errorf("taken after the release: %q", codeOf(op))
	}
	outside := &api.NetworkInterface{Fingerprint: c.get("a").NetworkInterfaces[0].Fingerprint,
		AliasIpRanges: []*api.AliasIpRange{{IpCidrRange: "10.9.1.5/32", SubnetworkRangeName: "leader"}}}
	if op := c.wait(move("a", outside)); codeOf(op) != "INVALID_FIELD_VALUE" {
		t.Errorf("an address outside of the range: %q", codeOf(op))
	}
}

func TestWrongInstancesAreRefused(t *testing.T) {
	c := start(t)
	for what, change := range map[string]func(*api.Instance){
		"name":      func(in *api.Instance) { in.Name = "A" },
		"label":     func(in *api.Instance) { in.Labels["group"] = "Workers" },
		"label key": func(in *api.Instance) { in.Labels["nstance:group"] = "workers" },
		"type":      func(in *api.Instance) { in.MachineType = "zones/us-central1-a/machineTypes/e9" },
		"image":     func(in *api.Instance) { in.Disks[0].InitializeParams.SourceImage = "global/images/none" },
		"disk":      func(in *api.Instance) { in.Disks = nil },
		"subnet":    func(in *api.Instance) { in.NetworkInterfaces[0].Subnetwork = "regions/r/subnetworks/s" },
		"metadata": func(in *api.Instance) {
			in.Metadata = &api.Metadata{Items: []*api.MetadataItems{{Key: "a:b"}}}
		},
		"scheduling": func(in *api.Instance) {
			restart := true
			in.Scheduling = &api.Scheduling{ProvisioningModel: "SPOT", AutomaticRestart: &restart}
		},
	} {
		in := instance("a")
		change(in)
		_, err := c.client.Instances.Insert(project, zone, in).Do()
		c.wantRefused(what, err, 400, "invalid")
	}
}

func TestSubnetRunsOut(t *testing.T) {
	c := start(t)
	for _, name := range []string{"a", "b", "c", "d"} { // A /29 has four addresses for VMs.
		if op := c.insert(instance(name), ""); op.Error != nil {
			t.Fatal(codeOf(op))
		}
	}
	if op := c.insert(instance("e"), ""); codeOf(op) != "IP_SPACE_EXHAUSTED_WITH_DETAILS" {
		t.Errorf("a fifth VM: %q", codeOf(op))
	}
}

func TestListHasFiltersAndPages(t *testing.T) {
	c := start(t)
	for _, name := range []string{"a", "b", "c"} {
		in := instance(name)
		if name == "b" {
			in.Labels["group"] = "other"
		}
		c.insert(in, "")
	}
	c.MaxPage = 1
	var names []string
	pages := 0
	const filter = `(labels.group = "workers") (status = RUNNING)`
	err := c.client.Instances.List(project, zone).Filter(filter).Pages(t.Context(),
		func(page *api.InstanceList) error {
			pages++
			for _, vm := range page.Items {
				names = append(names, vm.Name)
			}
			return nil
		})
	if got := strings.Join(names, " "); err != nil || got != "a c" || pages != 2 {
		t.Errorf("%d pages of %q, %v", pages, got, err)
	}
	_, err = c.client.Instances.List(project, zone).Filter("labels.group > 1").Do()
	c.wantRefused("an operator that the fake does not have", err, 400, "invalid")
}

func TestMetadataHasAFingerprint(t *testing.T) {
	c := start(t)
	in := instance("a")
	script := "#!/bin/sh"
	in.Metadata = &api.Metadata{Items: []*api.MetadataItems{{Key: "startup-script", Value: &script}}}
	c.insert(in, "")
	old := c.get("a").Metadata.Fingerprint
	_, err := c.client.Instances.SetMetadata(project, zone, "a", &api.Metadata{}).Do()
	c.wantRefused("without fingerprint", err, 412, "conditionNotMet")
	c.wait(c.client.Instances.SetMetadata(project, zone, "a", &api.Metadata{Fingerprint: old}).Do())
	if items := c.get("a").Metadata.Items; len(items) != 0 {
		t.Errorf("metadata %v", items)
	}
}

func TestGroupsOfInstances(t *testing.T) {
	c := start(t)
	c.insert(instance("a"), "")
	c.wait(c.client.InstanceGroups.Insert(project, zone, &api.InstanceGroup{Name: "g"}).Do())
	add := &api.InstanceGroupsAddInstancesRequest{Instances: []*api.InstanceReference{{Instance: c.get("a").SelfLink}}}
	c.wait(c.client.InstanceGroups.AddInstances(project, zone, "g", add).Do())
	_, err := c.client.InstanceGroups.AddInstances(project, zone, "g", add).Do()
	c.wantRefused("second add", err, 400, "memberAlreadyExists")
	c.wait(c.client.Instances.Delete(project, zone, "a").Do())
	members, err := c.client.InstanceGroups.ListInstances(project, zone, "g",
		&api.InstanceGroupsListInstancesRequest{}).Do()
	if err != nil || len(members.Items) != 0 {
		t.Errorf("members %v, %v", members, err)
	}
}

func TestSpotVMsAreGoneAfterPreemption(t *testing.T) {
	c := start(t)
	in := instance("a")
	in.Scheduling = &api.Scheduling{ProvisioningModel: "SPOT", InstanceTerminationAction: "DELETE"}
	c.insert(in, "")
	c.Preempt("projects/p/zones/us-central1-a/instances/a", 0)
	_, err := c.client.Instances.Get(project, zone, "a").Do()
	c.wantRefused("get", err, 404, "notFound")
}

// TestPartialURLs makes an instance from references without a project. The API accepts them and answers with whole
// URLs.
func TestPartialURLs(t *testing.T) {
	c := start(t)
	c.AddImage(project, "own", "")
	in := instance("a")
	in.MachineType, in.NetworkInterfaces[0].Subnetwork = "zones/us-central1-a/machineTypes/e2-small",
		"regions/us-central1/subnetworks/servers"
	in.Disks[0].InitializeParams.SourceImage = "global/images/own"
	if op := c.insert(in, ""); op.Error != nil {
		t.Fatalf("insert: %s", codeOf(op))
	}
	vm := c.get("a")
	if !strings.HasSuffix(vm.NetworkInterfaces[0].Subnetwork, "/"+subnet) ||
		!strings.HasPrefix(vm.MachineType, "https://") {
		t.Errorf("the instance has the type %s and the subnet %s", vm.MachineType, vm.NetworkInterfaces[0].Subnetwork)
	}
}
