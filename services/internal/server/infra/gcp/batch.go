package gcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/api/compute/v1"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// CreateBatch implements infra.Batch with one instances.bulkInsert, of which the UUID of the batch's first ID is the
// requestId. As for single creates, the instance's ID is the VM's name, which cannot be changed. A bulkInsert gives the
// VMs different names and otherwise the same properties, so the VMs of a batch have no label with the instance's ID.
//
// With minCount 1, a bulkInsert makes as many of the VMs as the zone has room for. It fails only if it makes none.
// https://cloud.google.com/compute/docs/instances/multiple/about-bulk-creation
func (p *Provider) CreateBatch(ctx context.Context, req infra.BatchRequest) ([]infra.VM, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	what := "create " + req.Batch.String()
	if req.VM.Tags.CreatedAt.IsZero() {
		return nil, refused(what, "the request has no time")
	}
	in, err := p.bulk(req)
	if err != nil {
		return nil, infra.Wrap(infra.Invalid, what, err)
	}
	if age := p.cfg.Now().Sub(req.VM.Tags.CreatedAt); age > young {
		vms, made, err := p.findMadeBatch(ctx, what, req, age)
		if made || err != nil {
			return vms, err
		}
	}
	op, doubtful, err := p.api.bulkInsert(ctx, in, requestID(req.Batch.First()))
	if err == nil {
		doubtful, err = false, p.api.wait(ctx, op)
		if _, failed := errors.AsType[*failure](err); failed || err == nil {
			vms, listErr := p.batchVMs(ctx, what, req)
			switch {
			case listErr != nil || len(vms) > 0:
				return vms, listErr
			case err == nil:
				return nil, infra.Errorf(infra.Conflict, what, "all instances of this request were deleted")
			}
			err = p.cause(ctx, op, err)
		}
	}
	err = p.classify(what, "instances.bulkInsert", err)
	switch class := infra.ClassOf(err); {
	case doubtful:
		return nil, infra.Reclass(err, infra.Indeterminate)
	case class == infra.NotFound:
		return nil, infra.Reclass(err, infra.Invalid) // something that the request names does not exist
	}
	return nil, err
}

// batchVMs returns the VMs of a batch. It fails as Conflict if another request made them, or if all of them are ending.
func (p *Provider) batchVMs(ctx context.Context, what string, req infra.BatchRequest) (vms []infra.VM, err error) {
	found, err := p.listOwned(ctx, req.VM.Tags.Owner)
	if err != nil {
		return nil, infra.Reclass(p.classify(what, "instances.list", err), infra.Indeterminate)
	}
	digest, err := req.Digest()
	if err != nil {
		return nil, infra.Wrap(infra.Invalid, what, err)
	}
	for _, in := range found {
		if id, err := ident.ParseID(in.Name); err != nil || !req.Batch.Has(id) {
			continue
		}
		vm := p.describe(in)
		if item(in, itemRequest) != digest {
			return nil, infra.Errorf(infra.Conflict, what, "instance %s was made by another request", vm.ProviderID)
		}
		vms = append(vms, vm)
	}
	if len(vms) > 0 && !slices.ContainsFunc(vms, func(vm infra.VM) bool { return vm.State.Alive() }) {
		return nil, infra.Errorf(infra.Conflict, what, "all instances of this request are ending")
	}
	return infra.SortVMs(vms), nil
}

// findMadeBatch is [Provider.findMade] for a batch. The log of operations has an insert for each of its VMs.
func (p *Provider) findMadeBatch(ctx context.Context, what string, req infra.BatchRequest, age time.Duration) (
	vms []infra.VM, made bool, err error) {
	vms, err = p.batchVMs(ctx, what, req)
	switch {
	case err != nil || len(vms) > 0:
		return vms, true, err
	case age > old:
		return nil, true, infra.Errorf(infra.Conflict, what, "the request is %s old, so earlier VMs of this batch may "+
			"be forgotten", age.Round(time.Hour))
	}
	ops, err := p.api.operations(ctx, fmt.Sprintf(`targetLink eq ".*/zones/%s/instances/%s.*"`, p.cfg.Zone,
		commonName(req.Batch)))
	if err != nil {
		return nil, false, p.classify(what, "zoneOperations.list", err)
	}
	for _, op := range ops {
		id, err := ident.ParseID(path.Base(op.TargetLink))
		if err != nil || !req.Batch.Has(id) || op.OperationType != "insert" {
			continue
		}
		if op.Status != "DONE" || failureOf(op) == nil {
			return nil, true, infra.Errorf(infra.Conflict, what, "an earlier bulkInsert made instance %d", op.TargetId)
		}
	}
	return nil, false, nil
}

// commonName returns the beginning that the names of all VMs of a batch have in common.
func commonName(batch ident.Batch) string {
	last, _ := batch.Member(ident.BatchSize - 1)
	first, other := batch.First().String(), last.String()
	n := 0
	for n < len(first) && first[n] == other[n] {
		n++
	}
	return first[:n]
}

// cause returns the reason of a bulkInsert that made no VM. The error of the bulkInsert says only that there are fewer
// VMs than minCount. The reason is the error of the insert of a VM.
func (p *Provider) cause(ctx context.Context, op *compute.Operation, err error) error {
	if op.OperationGroupId == "" {
		return err
	}
	ops, listErr := p.api.operations(ctx, fmt.Sprintf("operationGroupId = %q", op.OperationGroupId))
	if listErr != nil {
		return err
	}
	for _, insert := range ops {
		if reason := failureOf(insert); reason != nil && insert.OperationType == "insert" {
			return reason
		}
	}
	return err
}

// bulk returns the body of the bulkInsert for a batch.
func (p *Provider) bulk(req infra.BatchRequest) (*compute.BulkInsertInstanceResource, error) {
	digest, err := req.Digest()
	if err != nil {
		return nil, err
	}
	in, err := p.instance(req.VM, digest)
	if err != nil {
		return nil, err
	}
	properties, err := properties(in)
	if err != nil {
		return nil, err
	}
	names := map[string]compute.BulkInsertInstanceResourcePerInstanceProperties{}
	for i := range req.Count {
		names[req.Tags(i).Instance.String()] = compute.BulkInsertInstanceResourcePerInstanceProperties{}
	}
	return &compute.BulkInsertInstanceResource{Count: int64(req.Count), MinCount: 1, InstanceProperties: properties,
		PerInstanceProperties: names}, nil
}

// properties converts an instance to the properties of a bulkInsert, which are those of an instance template. They lack
// some fields of an instance. Where an instance has the URL of a machine type, a type of disks, an accelerator, a
// resource policy or a disk of the zone, they have the name.
// https://cloud.google.com/compute/docs/reference/rest/v1/instances/bulkInsert
func properties(in *compute.Instance) (*compute.InstanceProperties, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if params, ok := fields["params"].(map[string]any); ok && len(params) == 1 {
		if tags := params["resourceManagerTags"]; tags != nil {
			fields["resourceManagerTags"] = tags
			delete(fields, "params")
		}
	}
	shorten(fields)
	if text, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	out := &compute.InstanceProperties{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(out); err != nil {
		return nil, fmt.Errorf("args: instances.bulkInsert cannot create such VMs: %w", err)
	}
	forceSend(reflect.ValueOf(out).Elem(), fields)
	return out, nil
}

// shorten replaces the URLs in the properties of an instance by names, where the API wants names.
func shorten(value any) {
	switch value := value.(type) {
	case map[string]any:
		for field, inner := range value {
			switch inner := inner.(type) {
			case string:
				if slices.Contains([]string{"machineType", "diskType", "acceleratorType"}, field) ||
					field == "source" && strings.Contains(inner, "zones/") {
					value[field] = path.Base(inner)
				}
			case []any:
				for i, element := range inner {
					if link, ok := element.(string); ok && field == "resourcePolicies" {
						inner[i] = path.Base(link)
					}
				}
			}
			if field != "labels" && field != "metadata" {
				shorten(inner)
			}
		}
	case []any:
		for _, element := range value {
			shorten(element)
		}
	}
}
