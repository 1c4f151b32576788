// Package clusterinfo implements the data source nstance_cluster, which reads the public data of a cluster.
//
// Invariant: the data source needs no encryption key and reads no secret.
package clusterinfo

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// DataSource implements the data source nstance_cluster.
type DataSource struct{ base.DataSource }

// New returns the data source, not yet configured.
func New() datasource.DataSource { return &DataSource{base.DataSource{Name: "cluster"}} }

type model struct {
	ID               types.String `tfsdk:"id"`
	CACertificatePEM types.String `tfsdk:"ca_certificate_pem"`
	CAFingerprint    types.String `tfsdk:"ca_fingerprint"`
	CANotAfter       types.String `tfsdk:"ca_not_after"`
	CAKeyID          types.String `tfsdk:"ca_key_id"`
}

// Schema implements datasource.DataSource.
func (d *DataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	computed := func(doc string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: doc, Computed: true}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "The CA of an existing cluster, from the bucket. With the cluster's encryption key, " +
			"the provider checks that the cluster's CA has signed the CA bundle. Without the key, anybody who may " +
			"write to the bucket can change the result: compare `ca_fingerprint` with the one that you know.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{
				MarkdownDescription: "Name of the cluster.", Required: true,
				Validators: []validator.String{name.Valid("cluster name", ident.ValidateClusterName)},
			},
			"ca_certificate_pem": computed("The cluster's CA certificates in PEM. The first one is that of the " +
				"issuing CA."),
			"ca_fingerprint": computed("SHA-256 of the issuing CA's certificate, in hexadecimal."),
			"ca_not_after":   computed("When the issuing CA's certificate expires (RFC 3339)."),
			"ca_key_id":      computed("Subject key identifier of the issuing CA, in hexadecimal."),
		},
	}
}

// Read implements datasource.DataSource.
func (d *DataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m model
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	bundle, err := d.bundle(ctx, m.ID.ValueString())
	if err != nil {
		do := bucket.Advice(err)
		if errors.Is(err, objstore.ErrNotFound) {
			do = "Create the cluster with nstance_cluster or nstance-admin cluster init, or check the provider's " +
				"storage: with another bucket or prefix the cluster may be found."
		}
		resp.Diagnostics.Append(diagnostic.Failure{What: "Cannot read cluster " + m.ID.ValueString(),
			Where: d.Bucket.Place(keys.ClusterCA()), Why: err, Do: do}.Error())
		return
	}
	ca := bundle[0]
	m.CACertificatePEM = types.StringValue(string(authority.EncodeBundle(bundle...)))
	m.CAFingerprint = types.StringValue(authority.Fingerprint(ca))
	m.CANotAfter = types.StringValue(ca.NotAfter.UTC().Format(time.RFC3339))
	m.CAKeyID = types.StringValue(hex.EncodeToString(ca.SubjectKeyId))
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

func (d *DataSource) bundle(ctx context.Context, cluster string) ([]*x509.Certificate, error) {
	ring, err := d.Bucket.Ring(ctx)
	if err != nil || ring.Current.IsZero() {
		ring = keyring.Ring{} // the key is optional here
	}
	state, err := d.Bucket.Cluster(ctx, cluster, ring)
	if err != nil {
		return nil, err
	}
	read := state.CABundle
	if ring.Current.IsZero() {
		read = state.UnverifiedCABundle
	}
	bundle, err := read(ctx)
	if err != nil {
		return nil, err
	}
	// A CA that Nstance created has a URI with the name of its cluster. A CA from the user may have no such URI.
	for _, uri := range bundle[0].URIs {
		if uri.Scheme == "spiffe" && uri.Host != cluster {
			return nil, fmt.Errorf("the CA there is of cluster %q", uri.Host)
		}
	}
	return bundle, nil
}
