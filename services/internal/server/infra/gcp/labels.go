package gcp

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/api/compute/v1"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Labels of every VM and disk that the provider makes. A value that is not valid for a label is stored in a metadata
// item of the VM with the same key.
const (
	labelCluster   = contract.Prefix + "cluster"
	labelShard     = contract.Prefix + "shard"
	labelTenant    = contract.Prefix + "tenant"
	labelInstance  = contract.Prefix + "instance"
	labelTerm      = contract.Prefix + "term"
	labelInfraHash = contract.Prefix + "infra-hash"
	labelGroup     = contract.Prefix + "group"
	labelTemplate  = contract.Prefix + "template"
	labelKind      = contract.Prefix + "kind"
	labelOnDemand  = contract.Prefix + "on-demand"
	labelSpot      = contract.Prefix + "spot"    // only on Spot VMs
	labelCreated   = contract.Prefix + "created" // in milliseconds since 1970
	// itemRequest is the metadata item with the digest of the create request.
	itemRequest = contract.Prefix + "request"
)

// encodeTags returns the labels and metadata items of a VM. They depend only on t.
func encodeTags(t infra.Tags) (labels, items map[string]string, err error) {
	labels, items = map[string]string{}, map[string]string{}
	if t.Spot {
		labels[labelSpot] = "true"
	}
	for key, value := range map[string]string{
		labelCluster: t.Cluster, labelShard: t.Shard, labelTenant: t.Tenant, labelInstance: t.Instance.String(),
		labelTerm: strconv.FormatUint(t.Term, 10), labelInfraHash: t.InfraHash, labelGroup: t.Group,
		labelTemplate: t.Template, labelKind: t.Kind, labelOnDemand: strconv.FormatBool(t.OnDemand),
		labelCreated: strconv.FormatInt(t.CreatedAt.UnixMilli(), 10),
	} {
		err := contract.CheckLabel(key, value)
		switch {
		case err == nil:
			labels[key] = value
		case key == labelCluster || key == labelShard:
			return nil, nil, err // List filters by them
		default:
			items[key] = value
		}
	}
	return labels, items, nil
}

// decodeTags parses the labels and metadata of a VM. It leaves out values that cannot be parsed and lists them in the
// warning.
func decodeTags(in *compute.Instance) (t infra.Tags, warning string) {
	value := func(key string) string {
		if label, ok := in.Labels[key]; ok {
			return label
		}
		return item(in, key)
	}
	var warnings []string
	read := func(key string, parse func(string) error) {
		if err := parse(value(key)); err != nil {
			warnings = append(warnings, fmt.Sprintf("label %s: %v", key, err))
		}
	}
	t = infra.Tags{Owner: infra.Owner{Cluster: value(labelCluster), Shard: value(labelShard)},
		Tenant: value(labelTenant), InfraHash: value(labelInfraHash), Group: value(labelGroup),
		Template: value(labelTemplate), Kind: value(labelKind), OnDemand: value(labelOnDemand) == "true",
		Spot: value(labelSpot) == "true"}
	read(labelInstance, func(s string) (err error) { t.Instance, err = ident.ParseID(s); return err })
	read(labelTerm, func(s string) (err error) { t.Term, err = strconv.ParseUint(s, 10, 64); return err })
	read(labelCreated, func(s string) error {
		ms, err := strconv.ParseInt(s, 10, 64)
		t.CreatedAt = time.UnixMilli(ms).UTC()
		return err
	})
	if id, err := ident.ParseID(in.Name); err == nil && t.Instance.IsZero() {
		t.Instance = id // The label was removed, but the name cannot be.
	}
	return t, strings.Join(warnings, "; ")
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
