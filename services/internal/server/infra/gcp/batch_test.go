package gcp

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	api "google.golang.org/api/compute/v1"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
)

// batch makes a request for a new batch.
func (c *testCloud) batch(count int) infra.BatchRequest {
	c.t.Helper()
	vm := c.request()
	batch, err := ident.NewBatch("tst", c.now(), strings.NewReader(fmt.Sprintf("%08d", sequence.Add(1))))
	if err != nil {
		c.t.Fatal(err)
	}
	vm.Tags.Instance = ident.ID{}
	return infra.BatchRequest{Batch: batch, Count: count, VM: vm}
}

func (c *testCloud) createBatch(p *Provider, req infra.BatchRequest, want int) []infra.VM {
	c.t.Helper()
	vms, err := p.CreateBatch(c.t.Context(), req)
	if err != nil || len(vms) != want {
		c.t.Fatalf("%d VMs, %v, want %d", len(vms), err, want)
	}
	return vms
}

// TestBatchIsOneCall checks which calls a batch makes, that its VMs have the fields that args name, and that their
// names and not their labels say which instances they are.
func TestBatchIsOneCall(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	req := c.batch(20)
	req.VM.Args["shieldedInstanceConfig"] = map[string]any{"enableVtpm": false}
	req.VM.Args["canIpForward"] = true
	req.VM.Args["disks"].([]any)[0].(map[string]any)["initializeParams"].(map[string]any)["diskType"] =
		"zones/us-central1-a/diskTypes/pd-ssd"
	vms := c.createBatch(p, req, 20)
	bulk, single := c.server.Count("compute.instances.bulkInsert"), c.server.Count("compute.instances.insert")
	if bulk != 1 || single != 0 {
		t.Errorf("%d calls of bulkInsert and %d of insert", bulk, single)
	}
	in, err := p.api.get(t.Context(), vms[7].ProviderID)
	if err != nil {
		t.Fatal(err)
	}
	if in.Name != vms[7].Tags.Instance.String() || in.Labels["nstance-group"] != "g" ||
		slices.Contains(slices.Collect(maps.Keys(in.Labels)), "nstance-instance-id") {
		t.Errorf("the VM of %s has the name %s and the labels %v", vms[7].Tags.Instance, in.Name, in.Labels)
	}
	if !in.CanIpForward || in.ShieldedInstanceConfig == nil || in.ShieldedInstanceConfig.EnableVtpm ||
		*in.Scheduling.AutomaticRestart {
		t.Errorf("the VM is %+v", in)
	}
	if text := string(mustJSON(t, p, req)); !strings.Contains(text, `"enableVtpm":false`) ||
		strings.Contains(text, "machineTypes/") || strings.Contains(text, "diskTypes/") {
		t.Errorf("the request is %s", text)
	}
}

func mustJSON(t *testing.T, p *Provider, req infra.BatchRequest) []byte {
	t.Helper()
	in, err := p.bulk(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := in.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestBatchRefusesFields checks that fields which only single VMs can have are refused, with their names.
func TestBatchRefusesFields(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	for field, value := range map[string]any{"displayDevice": map[string]any{"enableDisplay": true},
		"params": map[string]any{"requestValidForDuration": map[string]any{"seconds": "60"}}} {
		req := c.batch(3)
		req.VM.Args[field] = value
		_, err := p.CreateBatch(t.Context(), req)
		wantClass(t, field, err, infra.Invalid, field, "bulkInsert")
	}
	req := c.batch(3)
	req.VM.Args["params"] = map[string]any{"resourceManagerTags": map[string]any{"tagKeys/1": "tagValues/2"}}
	c.createBatch(p, req, 3)
	if c.count() != 3 {
		t.Errorf("%d VMs, want 3", c.count())
	}
}

// TestBatchSaysWhy checks that the error of a batch without any VM is that of its VMs, and that a VM whose insert fails
// is missing.
func TestBatchSaysWhy(t *testing.T) {
	for name, test := range map[string]struct {
		failure *compute.Failure
		want    infra.Class
		quota   string
	}{
		"stockout": {compute.Stockout(), infra.Capacity, ""},
		"quota":    {compute.QuotaExceeded("SSD_TOTAL_GB"), infra.Capacity, "SSD_TOTAL_GB"},
		"denied":   {&compute.Failure{Code: "PERMISSIONS_ERROR", Message: "no", Status: 403}, infra.Denied, ""},
		"unknown":  {&compute.Failure{Code: "CONDITION_NOT_MET", Message: "no"}, infra.Invalid, ""},
	} {
		c := newTestCloud(t)
		p := c.open(nil)
		c.fake.SetDelay("insert", 10*time.Second)
		c.fake.Fail(compute.Fault{Type: "insert", Failure: test.failure})
		_, err := p.CreateBatch(t.Context(), c.batch(3))
		wantClass(t, name, err, test.want, test.failure.Code)
		if got := infra.QuotaOf(err); got != test.quota || c.count() != 0 {
			t.Errorf("%s: quota %q, %d VMs", name, got, c.count())
		}
		c.fake.Repair()
		c.fake.Fail(compute.Fault{Type: "insert", Failure: test.failure, Times: 2})
		c.createBatch(p, c.batch(5), 3)
	}
}

// TestLostAnswerOfABatch loses the answer of a bulkInsert. The repeated call must not make further VMs.
func TestLostAnswerOfABatch(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	c.server.LoseAnswer("compute.instances.bulkInsert")
	c.createBatch(p, c.batch(5), 5)
	c.server.LoseAnswer("compute.instances.bulkInsert")
	c.server.Refuse("compute.instances.bulkInsert", compute.RateLimited("Queries"))
	req := c.batch(5)
	_, err := p.CreateBatch(t.Context(), req)
	wantClass(t, "a refusal after a lost answer", err, infra.Indeterminate)
	c.createBatch(p, req, 5)
	if c.count() != 10 {
		t.Errorf("%d VMs, want 10", c.count())
	}
}

// TestOldBatchMakesNoVMs repeats the request of a batch that was partly filled, at several ages: while its VMs exist
// and after they were deleted. At the last age, the log of operations may have forgotten the batch.
func TestOldBatchMakesNoVMs(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		c := newTestCloud(t)
		p := c.open(nil)
		c.setRoom(3)
		req := c.batch(5)
		vms := c.createBatch(p, req, 3)
		c.fake.Repair()
		for _, vm := range vms {
			if !deleted {
				break
			}
			if err := p.Delete(t.Context(), vm); err != nil {
				t.Fatal(err)
			}
		}
		for _, age := range []time.Duration{20 * time.Minute, 50 * time.Minute, 2 * time.Hour, 30 * 24 * time.Hour} {
			c.ahead.Store(int64(age))
			if !deleted {
				c.createBatch(p, req, 3)
				continue
			}
			_, err := p.CreateBatch(t.Context(), req)
			wantClass(t, "after "+age.String(), err, infra.Conflict)
			if c.count() != 0 {
				t.Fatalf("after %s there are %d VMs", age, c.count())
			}
		}
	}
}

// TestLateBatchIsMade sends the request of a batch late, as a leader does that waited for its turn. Another batch has
// made VMs before.
func TestLateBatchIsMade(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	c.createBatch(p, c.batch(3), 3)
	req := c.batch(4)
	c.ahead.Store(int64(2 * time.Hour))
	c.createBatch(p, req, 4)
	if c.count() != 7 {
		t.Errorf("%d VMs, want 7", c.count())
	}
}

// TestChangedLabelsOfABatch checks that a VM of a batch stays the VM of its instance when somebody changes its labels.
func TestChangedLabelsOfABatch(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	req := c.batch(2)
	vm := c.createBatch(p, req, 2)[1]
	in, err := p.api.get(t.Context(), vm.ProviderID)
	if err != nil {
		t.Fatal(err)
	}
	in.Labels["nstance-instance-id"] = "damaged"
	if _, err := p.api.service.Instances.SetLabels(project, zone, vm.ProviderID, &api.InstancesSetLabelsRequest{
		Labels: in.Labels, LabelFingerprint: in.LabelFingerprint}).Do(); err != nil {
		t.Fatal(err)
	}
	found, err := p.FindByInstance(t.Context(), req.VM.Tags.Owner, vm.Tags.Instance)
	if err != nil || found.Tags.Instance != vm.Tags.Instance || !strings.Contains(found.Warning, "instance-id") {
		t.Errorf("%+v, %v", found, err)
	}
}
