// Package admincontext implements the data source nstance_admin_context, which writes a context for nstance-admin.
//
// Invariant: the data source reads nothing, and its result has no secret: a key is named by its place.
package admincontext

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/contexts"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// DataSource implements the data source nstance_admin_context.
type DataSource struct{ base.DataSource }

// New returns the data source, not yet configured.
func New() datasource.DataSource { return &DataSource{base.DataSource{Name: "admin_context"}} }

type model struct {
	Name          types.String `tfsdk:"name"`
	ClusterID     types.String `tfsdk:"cluster_id"`
	Servers       types.Map    `tfsdk:"servers"`
	Via           types.Map    `tfsdk:"via"`
	Shard         types.String `tfsdk:"shard"`
	Storage       types.Object `tfsdk:"storage"`
	ShardStorage  types.Map    `tfsdk:"shard_storage"`
	Secrets       types.Object `tfsdk:"secrets"`
	EncryptionKey types.Object `tfsdk:"encryption_key"`
	JSON          types.String `tfsdk:"json"`
}

// Schema implements datasource.DataSource.
func (d *DataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	text := func(doc string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: doc, Optional: true}
	}
	needed := func(doc string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: doc, Required: true}
	}
	storage := map[string]schema.Attribute{
		"provider": needed("Kind of object store."),
		"bucket":   needed("Name of the bucket."),
		"prefix":   text("Prefix of all keys in the bucket."),
		"region":   text("Region of the bucket."),
		"endpoint": text("URL of an object store that is not a cloud's own."),
		"path_style": schema.BoolAttribute{Optional: true,
			MarkdownDescription: "Name the bucket in the path of the URL and not in its host."},
	}
	const byDefault = " Default: that of the provider's configuration."
	resp.Schema = schema.Schema{
		MarkdownDescription: "A context for `nstance-admin`: the addresses of the leaders, the bucket, and the place " +
			"of the encryption key. It has no secrets. With an output `admin_context` of `json`, this command adds " +
			"the context: `tofu output -raw admin_context | nstance-admin context import -`.",
		Attributes: map[string]schema.Attribute{
			"name":       needed("Name of the context, such as that of the cluster."),
			"cluster_id": text("Name of the cluster. Default: the name of the context."),
			"servers": schema.MapAttribute{
				MarkdownDescription: "Operator addresses by shard, each `host:port`, or several with commas." +
					byDefault,
				ElementType: types.StringType, Optional: true},
			"via": schema.MapAttribute{
				MarkdownDescription: "Ways to servers that a laptop cannot reach, by shard: " + tunnel.Forms + ".",
				ElementType:         types.StringType, Optional: true},
			"shard": text("The shard that commands ask if none is named. Not needed if there is only one."),
			"storage": schema.SingleNestedAttribute{
				MarkdownDescription: "The bucket." + byDefault, Optional: true,
				Attributes: storage},
			"shard_storage": schema.MapNestedAttribute{
				MarkdownDescription: "The buckets of shards that have their own, by shard, such as those of shards " +
					"in another cloud. Commands that work on the bucket find these shards there.",
				Optional:     true,
				NestedObject: schema.NestedAttributeObject{Attributes: storage}},
			"secrets": schema.SingleNestedAttribute{
				MarkdownDescription: "Where the cluster's secrets are kept." + byDefault, Optional: true,
				Attributes: map[string]schema.Attribute{
					"provider":   needed("Where the secrets are kept."),
					"prefix":     text("Prefix of the names of all secrets."),
					"project_id": text("Project that holds the secrets."),
				}},
			"encryption_key": schema.SingleNestedAttribute{
				MarkdownDescription: "Where the encryption key is. Not the key itself." + byDefault, Optional: true,
				Attributes: map[string]schema.Attribute{
					"provider": needed("Where the key is kept."),
					"source":   text("Name of the environment variable, path of the file, or name of the secret."),
				}},
			"json": schema.StringAttribute{Computed: true,
				MarkdownDescription: "The context in JSON, for `nstance-admin context import`."},
		},
	}
}

// Read implements datasource.DataSource.
func (d *DataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m model
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	document, err := d.document(m)
	if err != nil {
		resp.Diagnostics.Append(diagnostic.Failure{What: "Cannot write the context " + m.Name.ValueString(), Why: err,
			Do: "Correct the arguments of the data source or of the provider."}.Error())
		return
	}
	m.JSON = types.StringValue(document)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// document returns the context in JSON. It has an empty value for each setting that Terraform knows to be empty, so
// that an import removes an earlier value. Settings of one person, such as the identity's directory, are left out.
func (d *DataSource) document(m model) (string, error) {
	name := m.Name.ValueString()
	found := contexts.Context{"shard": m.Shard.ValueString(), "cluster_id": m.ClusterID.ValueString()}
	if found["cluster_id"] == "" {
		found["cluster_id"] = name
	}
	addresses, ok := d.Servers.Addresses()
	if !m.Servers.IsNull() {
		addresses, ok = texts(m.Servers), true
	}
	if !ok {
		return "", servers.ErrUnknown
	}
	found["servers"], found["via"] = join(addresses), join(texts(m.Via))
	if _, err := tunnel.Parse(found["via"]); err != nil {
		return "", err
	}
	found["shard_storage"] = shardStorage(m.ShardStorage)
	settings := d.Servers.Bucket().Settings()
	switch storage := settings.Storage; {
	case !m.Storage.IsNull():
		add(found, "storage", m.Storage, "provider", "bucket", "prefix", "region", "endpoint", "path_style")
	case settings.StorageUnknown:
		return "", bucket.ErrUnknown
	case storage == nil:
		return "", errors.New("storage is set neither here nor in the provider's configuration")
	default:
		maps.Copy(found, contexts.Context{"storage_provider": storage.Provider, "storage_bucket": storage.Bucket,
			"storage_prefix": storage.Prefix, "storage_region": storage.Region, "storage_endpoint": storage.Endpoint,
			"storage_path_style": ""})
		if storage.PathStyle {
			found["storage_path_style"] = strconv.FormatBool(true)
		}
	}
	switch secrets := settings.Secrets; {
	case !m.Secrets.IsNull():
		add(found, "secrets", m.Secrets, "provider", "prefix", "project_id")
	case settings.StoreUnknown:
		return "", bucket.ErrUnknown
	default:
		maps.Copy(found, contexts.Context{"secrets_provider": secrets.Provider, "secrets_prefix": secrets.Prefix,
			"secrets_project_id": secrets.ProjectID})
	}
	found["secrets_project"] = found["secrets_project_id"]
	delete(found, "secrets_project_id")
	switch key := settings.Secrets.EncryptionKey; {
	case !m.EncryptionKey.IsNull():
		add(found, "key", m.EncryptionKey, "provider", "source")
	case settings.KeysUnknown:
		return "", bucket.ErrUnknown
	case key != nil:
		maps.Copy(found, contexts.Context{"key_provider": key.Provider, "key_source": key.Source})
	}
	document, err := json.MarshalIndent(contexts.File{Current: name,
		Contexts: map[string]contexts.Context{name: found}}, "", "  ")
	if err != nil {
		return "", err
	}
	_, err = contexts.Parse(document)
	return string(document) + "\n", err
}

// shardStorage returns the buckets of shards as nstance-admin reads them.
func shardStorage(of types.Map) string {
	shards := map[string]contexts.ShardStorage{}
	for shard, value := range of.Elements() {
		object, ok := value.(types.Object)
		if !ok {
			continue
		}
		field := func(name string) string { return text(object.Attributes()[name]) }
		shards[shard] = contexts.ShardStorage{Storage: config.Storage{Provider: field("provider"),
			Bucket: field("bucket"), Prefix: field("prefix"), Region: field("region"), Endpoint: field("endpoint")},
			PathStyle: field("path_style") != ""}
	}
	return contexts.FormatShardStorage(shards)
}

// add copies the attributes of an object to settings whose names begin with a word.
func add(to contexts.Context, word string, object basetypes.ObjectValue, names ...string) {
	for _, name := range names {
		to[word+"_"+name] = text(object.Attributes()[name])
	}
}

// text returns a value as text. It returns "" for null and false.
func text(value attr.Value) string {
	switch value := value.(type) {
	case types.String:
		return value.ValueString()
	case types.Bool:
		if value.ValueBool() {
			return strconv.FormatBool(true)
		}
	}
	return ""
}

// texts returns the values of a map as texts.
func texts(of types.Map) map[string]string {
	all := map[string]string{}
	for name, value := range of.Elements() {
		all[name] = text(value)
	}
	return all
}

// join returns addresses by shard as shard=host:port,….
func join(addresses map[string]string) string {
	var all []string
	for _, shard := range slices.Sorted(maps.Keys(addresses)) {
		for addr := range strings.SplitSeq(addresses[shard], ",") {
			all = append(all, shard+"="+strings.TrimSpace(addr))
		}
	}
	return strings.Join(all, ",")
}
