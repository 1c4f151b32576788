// Package shardstatus implements the data source nstance_shard_status, which reads the status of a shard from the
// bucket.
//
// Invariants:
//   - The data source only reads, and needs neither an encryption key nor a server.
//   - The data source reports only what is in the instances' records. It does not report health, which only the servers
//     know.
package shardstatus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// DataSource implements the data source nstance_shard_status.
type DataSource struct{ base.DataSource }

// New returns the data source, not yet configured.
func New() datasource.DataSource { return &DataSource{base.DataSource{Name: "shard_status"}} }

type (
	model struct {
		Shard       types.String          `tfsdk:"shard"`
		ClusterID   types.String          `tfsdk:"cluster_id"`
		ConfigETag  types.String          `tfsdk:"config_etag"`
		AppliedETag types.String          `tfsdk:"applied_etag"`
		Applied     types.Bool            `tfsdk:"applied"`
		Generation  types.Int64           `tfsdk:"generation"`
		Terminating types.Bool            `tfsdk:"terminating"`
		Leader      *leaderModel          `tfsdk:"leader"`
		Groups      map[string]groupModel `tfsdk:"groups"`
	}
	leaderModel struct {
		ID               types.String `tfsdk:"id"`
		Term             types.Int64  `tfsdk:"term"`
		RenewedAt        types.String `tfsdk:"renewed_at"`
		OperatorAddr     types.String `tfsdk:"operator_addr"`
		RegistrationAddr types.String `tfsdk:"registration_addr"`
		AgentAddr        types.String `tfsdk:"agent_addr"`
	}
	groupModel struct {
		Static     types.Bool   `tfsdk:"static"`
		Template   types.String `tfsdk:"template"`
		Size       types.Int64  `tfsdk:"size"`
		ActualSize types.Int64  `tfsdk:"actual_size"`
		Registered types.Int64  `tfsdk:"registered"`
		Deleting   types.Int64  `tfsdk:"deleting"`
	}
)

// Schema implements datasource.DataSource.
func (d *DataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	text := func(doc string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: doc, Computed: true}
	}
	number := func(doc string) schema.Int64Attribute {
		return schema.Int64Attribute{MarkdownDescription: doc, Computed: true}
	}
	boolean := func(doc string) schema.BoolAttribute {
		return schema.BoolAttribute{MarkdownDescription: doc, Computed: true}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "State of a shard according to its objects in the bucket: its leader, the applied " +
			"configuration, the number of instances of each group. Reading it needs neither the encryption key nor " +
			"a server. Use `depends_on` to read it after a change, such as an `nstance_shard` with `wait_for_leader`.",
		Attributes: map[string]schema.Attribute{
			"shard": schema.StringAttribute{
				MarkdownDescription: "Name of the shard.", Required: true,
				Validators: []validator.String{name.Valid("shard", ident.ValidateName)},
			},
			"cluster_id":  text("Name of the cluster."),
			"config_etag": text("Version of the configuration in the bucket."),
			"applied_etag": text(
				"Version of the configuration that the present or last leader has applied. Null if no leader has " +
					"applied one."),
			"applied":    boolean("Whether the leader has applied the configuration that is in the bucket."),
			"generation": number("How many configurations the shard's leaders have applied so far."),
			"terminating": boolean("Whether the configuration sets `terminating`, so that the leader deletes all " +
				"instances."),
			"leader": schema.SingleNestedAttribute{
				MarkdownDescription: "The leader that the shard's lock names. Null if no server has led yet, or if " +
					"the last leader resigned. The lock names a dead leader until another server takes over, so " +
					"compare `renewed_at` with the time.",
				Computed: true,
				Attributes: map[string]schema.Attribute{
					"id": text("ID of the server."),
					"term": number("Number of the leader's term, which rises with each change of the " +
						"leader."),
					"renewed_at":        text("When the leader last renewed the lock, by its own clock (RFC 3339)."),
					"operator_addr":     text("Address of the operator API, `host:port`."),
					"registration_addr": text("Address for registrations, `host:port`."),
					"agent_addr":        text("Address for agents, `host:port`."),
				},
			},
			"groups": schema.MapNestedAttribute{
				MarkdownDescription: "The groups of the applied configuration and the dynamic groups, by " +
					"`tenant/name`. Numbers of instances come from their records in the bucket.",
				Computed: true,
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"static":      boolean("Whether the group is in the shard's configuration."),
					"template":    text("Name of the group's template."),
					"size":        number("How many instances the group should have."),
					"actual_size": number("How many instances the group has: being created, starting, or registered."),
					"registered":  number("How many instances of `actual_size` are registered."),
					"deleting":    number("How many other instances are being drained or deleted."),
				}},
			},
		},
	}
}

// Read implements datasource.DataSource.
func (d *DataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m model
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	if err := m.readStatus(ctx, d.Bucket); err != nil {
		resp.Diagnostics.Append(diagnostic.Failure{
			What:  "Cannot read the status of shard " + m.Shard.ValueString(),
			Where: d.Bucket.Place(keys.Config(m.Shard.ValueString())), Why: err, Do: advice(err),
		}.Error())
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

func advice(err error) string {
	if errors.Is(err, objstore.ErrNotFound) {
		return "Create the shard with nstance_shard first, or correct the shard's name or the provider's storage."
	}
	return bucket.Advice(err)
}

// readStatus fills in the computed attributes from the bucket. It returns objstore.ErrNotFound if the shard has no
// configuration.
func (m *model) readStatus(ctx context.Context, b *bucket.Connection) error {
	name := m.Shard.ValueString()
	reader, err := b.Shard(ctx, "", name)
	if err != nil {
		return err
	}
	body, token, err := reader.ReadConfig(ctx, name)
	if err != nil {
		return err
	}
	written, problems := config.ParseStored("", body)
	if err := problems.Err(); err != nil {
		return fmt.Errorf("the configuration in the bucket is not valid: %w", err)
	}
	m.ClusterID, m.ConfigETag = types.StringValue(written.Cluster.ID), types.StringValue(string(token))
	m.Terminating = types.BoolValue(written.Terminating)
	state, err := b.Shard(ctx, written.Cluster.ID, name)
	if err != nil {
		return err
	}
	if err := m.leadership(ctx, state, name); err != nil {
		return err
	}
	inForce, err := m.inForce(ctx, state, written)
	if err != nil {
		return err
	}
	return m.count(ctx, state, inForce)
}

func (m *model) leadership(ctx context.Context, state *clusterstate.State, name string) error {
	lock, _, err := state.ReadLock(ctx, name)
	m.Applied = types.BoolValue(false)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if lock.AppliedETag != "" {
		m.AppliedETag = types.StringValue(lock.AppliedETag)
	}
	if lock.Released {
		return nil
	}
	m.Applied = types.BoolValue(lock.AppliedETag == m.ConfigETag.ValueString())
	m.Leader = &leaderModel{
		ID: types.StringValue(lock.LeaderID), Term: types.Int64Value(int64(lock.Term)),
		RenewedAt:    types.StringValue(lock.RenewedAt.UTC().Format(time.RFC3339)),
		OperatorAddr: types.StringValue(lock.Addresses.Operator), RegistrationAddr: types.StringValue(
			lock.Addresses.Registration), AgentAddr: types.StringValue(lock.Addresses.Agent),
	}
	return nil
}

// inForce returns the configuration that a leader applied last. If no leader has applied one, it returns `written`. It
// does not check the configuration's signature, because the data source has no key.
func (m *model) inForce(ctx context.Context, state *clusterstate.State, written *config.Shard) (*config.Shard, error) {
	m.Generation = types.Int64Value(0)
	applied, err := state.UnverifiedApplied(ctx)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return written, nil
	case err != nil:
		return nil, err
	}
	m.Generation = types.Int64Value(int64(applied.Revision))
	shard, problems := config.ParseApplied("", applied.Body)
	if shard == nil {
		return nil, fmt.Errorf("the configuration that was applied is not valid: %w", problems.Err())
	}
	return shard, nil
}

func (m *model) count(ctx context.Context, state *clusterstate.State, shard *config.Shard) error {
	dynamic, _, _, err := state.ReadGroups(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	type counts struct{ actual, registered, deleting int64 }
	byGroup := map[config.GroupKey]counts{}
	err = state.LoadInstances(ctx, func(rec record.Instance, _ objstore.Token) {
		key := config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}
		n := byGroup[key]
		switch {
		case rec.OnDemand || rec.IsSpare() || rec.State == record.Deleted:
		case rec.State == record.Deleting:
			n.deleting++
		default:
			n.actual++
			if rec.State == record.Registered {
				n.registered++
			}
		}
		byGroup[key] = n
	})
	if err != nil {
		return err
	}
	merged, _ := shard.Merged(dynamic) // servers report the problems; a group with a problem is still in the result
	m.Groups = map[string]groupModel{}
	for key, group := range merged {
		n := byGroup[key]
		m.Groups[key.String()] = groupModel{
			Static: types.BoolValue(group.Static), Template: types.StringValue(group.Template),
			Size:       types.Int64Value(int64(group.Size)),
			ActualSize: types.Int64Value(n.actual), Registered: types.Int64Value(n.registered),
			Deleting: types.Int64Value(n.deleting),
		}
	}
	return nil
}
