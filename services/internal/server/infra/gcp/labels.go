package gcp

import (
	"google.golang.org/api/compute/v1"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

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
		if label, ok := in.Labels[contract.Prefix+name]; ok {
			return label
		}
		return item(in, contract.Prefix+name)
	})
	if id, err := ident.ParseID(in.Name); err == nil && t.Instance.IsZero() {
		t.Instance = id // The label was removed, but the name cannot be.
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
