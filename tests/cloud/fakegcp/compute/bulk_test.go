package compute_test

import (
	"net/http"
	"testing"
	"time"

	api "google.golang.org/api/compute/v1"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
)

// bulk makes a request for instances with the given names.
func bulk(names ...string) *api.BulkInsertInstanceResource {
	in := instance("")
	each := map[string]api.BulkInsertInstanceResourcePerInstanceProperties{}
	for _, name := range names {
		each[name] = api.BulkInsertInstanceResourcePerInstanceProperties{}
	}
	return &api.BulkInsertInstanceResource{Count: int64(len(names)), PerInstanceProperties: each,
		InstanceProperties: &api.InstanceProperties{MachineType: "e2-small", Labels: in.Labels, Disks: in.Disks,
			NetworkInterfaces: in.NetworkInterfaces}}
}

// TestBulkInsert makes instances in bulk, with room for two of three.
func TestBulkInsert(t *testing.T) {
	c := start(t)
	c.SetDelay("insert", time.Minute)
	call := func(in *api.BulkInsertInstanceResource, requestID string) *api.Operation {
		t.Helper()
		op, err := c.client.Instances.BulkInsert(project, zone, in).RequestId(requestID).Do()
		if err != nil || op.Status != "RUNNING" || op.OperationGroupId == "" {
			t.Fatalf("%+v, %v", op, err)
		}
		c.now = c.now.Add(time.Minute)
		return c.wait(op, nil)
	}
	names := func() (names []string) {
		list, err := c.client.Instances.List(project, zone).Do()
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range list.Items {
			names = append(names, in.Name)
		}
		return names
	}
	c.Fail(compute.Fault{Type: "insert", Failure: compute.Stockout(),
		Matches: func(r *compute.Resource) bool { return r.Name() == "c" }})

	// Without minCount, all are made or none.
	op := call(bulk("a", "b", "c"), "00000000-0000-4000-8000-000000000001")
	if codeOf(op) != "VM_MIN_COUNT_NOT_REACHED" || op.HttpErrorStatusCode != http.StatusServiceUnavailable ||
		len(names()) != 0 {
		t.Errorf("all or none: %+v, instances %v", op, names())
	}
	in := bulk("a", "b", "c")
	in.MinCount = 1
	op = call(in, "00000000-0000-4000-8000-000000000002")
	status := op.InstancesBulkInsertOperationMetadata.PerLocationStatus["zones/"+zone]
	if codeOf(op) != "" || len(names()) != 2 || status.TargetVmCount != 3 || status.CreatedVmCount != 2 ||
		status.FailedToCreateVmCount != 1 {
		t.Errorf("some: %+v, %+v, instances %v", op, status, names())
	}
	ops, err := c.client.ZoneOperations.List(project, zone).Filter(`operationGroupId = "` + op.OperationGroupId +
		`"`).Do()
	if err != nil || len(ops.Items) != 4 {
		t.Errorf("%d operations in the group, %v", len(ops.Items), err)
	}

	// A repeated request has the same result, even with room for the third one.
	c.Repair()
	again, err := c.client.Instances.BulkInsert(project, zone, in).
		RequestId("00000000-0000-4000-8000-000000000002").Do()
	if err != nil || again.Name != op.Name || len(names()) != 2 {
		t.Errorf("repeated: %+v, %v, instances %v", again, err, names())
	}
	in = bulk("a", "d")
	in.MinCount = 1
	if op = call(in, ""); codeOf(op) != "" || len(names()) != 3 {
		t.Errorf("with a name that is taken: %+v, instances %v", op, names())
	}

	for what, change := range map[string]func(*api.BulkInsertInstanceResource){
		"wrong count":  func(r *api.BulkInsertInstanceResource) { r.Count++ },
		"two ways":     func(r *api.BulkInsertInstanceResource) { r.NamePattern = "x-##" },
		"no names":     func(r *api.BulkInsertInstanceResource) { r.PerInstanceProperties = nil },
		"minCount":     func(r *api.BulkInsertInstanceResource) { r.MinCount = 2 },
		"unknown type": func(r *api.BulkInsertInstanceResource) { r.InstanceProperties.MachineType = "z9" },
	} {
		in := bulk("e")
		change(in)
		_, err := c.client.Instances.BulkInsert(project, zone, in).Do()
		c.wantRefused(what, err, http.StatusBadRequest, "invalid")
	}
	in = bulk("e")
	in.InstanceProperties.MachineType = "zones/us-central1-a/machineTypes/e2-small"
	if op := c.wait(c.client.Instances.BulkInsert(project, zone, in).Do()); codeOf(op) != "INTERNAL_ERROR" {
		t.Errorf("a machine type as URL: %+v", op)
	}
}
