package provider

import (
	"context"
	"regexp"

	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
)

// Schema implements provider.Provider.
func (p *Provider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	key := map[string]schema.Attribute{
		"provider": schema.StringAttribute{
			MarkdownDescription: "Where the key is kept: " + name.List(config.KeySourceNames()) + ".",
			Required:            true,
			Validators:          []validator.String{stringvalidator.OneOf(config.KeySourceNames()...)},
		},
		"source": schema.StringAttribute{
			MarkdownDescription: "Name of the environment variable (default `" + config.DefaultKeyVariable +
				"`), path of the file, or name or ARN of the secret or parameter.",
			Optional: true,
		},
		"project_id": schema.StringAttribute{
			MarkdownDescription: "Project of the secret with the key, if `source` does not name it. For " +
				name.List(config.SecretsStoresWithProject()) + ".",
			Optional: true,
		},
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "Nstance keeps fleets of VMs alive. This provider writes what its servers read from a " +
			"bucket: the CA, secrets, operators, and the configuration of each shard. It also manages dynamic " +
			"groups, through the servers' API. While settings of the provider are unknown, a plan works without the " +
			"bucket, the key and a server. Otherwise it needs permission to read the bucket, and more only for " +
			"ephemeral resources of this provider.",
		Attributes: map[string]schema.Attribute{
			"storage": schema.SingleNestedAttribute{
				MarkdownDescription: "The bucket with the cluster's objects. Credentials come from the usual places " +
					"of its SDK: environment, profiles, roles. `profile`, `assume_role` and, without an `endpoint`, " +
					"`region` also apply to the services of the same cloud in `secrets`, `encryption_key`, " +
					"`old_encryption_keys` and `machine_group` of `nstance_servers_ready`.",
				Optional: true,
				Attributes: map[string]schema.Attribute{
					"provider": schema.StringAttribute{
						MarkdownDescription: "Kind of object store: " + name.List(open.Names()) + ".",
						Required:            true,
						Validators:          []validator.String{stringvalidator.OneOf(open.Names()...)},
					},
					"bucket": schema.StringAttribute{
						MarkdownDescription: "Name of the bucket. With the provider `file`: path of a directory.",
						Required:            true,
						Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
					},
					"prefix": schema.StringAttribute{
						MarkdownDescription: "Prefix of all keys in the bucket.", Optional: true},
					"region": schema.StringAttribute{MarkdownDescription: "Region of the bucket.", Optional: true},
					"endpoint": schema.StringAttribute{
						MarkdownDescription: "URL of an S3-compatible store.", Optional: true},
					"path_style": schema.BoolAttribute{
						MarkdownDescription: "Name the bucket in the path of the URL and not in its host, as most " +
							"S3-compatible stores require.", Optional: true},
					"profile": schema.StringAttribute{
						MarkdownDescription: "Profile in the AWS configuration and credentials files. For `s3`. " +
							"Default: the variable `AWS_PROFILE`.",
						Optional:   true,
						Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
					},
					"assume_role": schema.SingleNestedAttribute{
						MarkdownDescription: "IAM role that the provider assumes. For `s3`.",
						Optional:            true,
						Attributes: map[string]schema.Attribute{
							"role_arn": schema.StringAttribute{
								MarkdownDescription: "ARN of the role.", Required: true,
								Validators: []validator.String{stringvalidator.RegexMatches(
									regexp.MustCompile(`^arn:[a-z-]+:iam::[0-9]{12}:role/.+$`),
									"must be the ARN of a role, such as arn:aws:iam::123456789012:role/state")},
							},
							"external_id": schema.StringAttribute{
								MarkdownDescription: "External ID that the role's trust policy demands.",
								Optional:            true},
							"session_name": schema.StringAttribute{
								MarkdownDescription: "Name of the session, which AWS's logs show. Default: a number.",
								Optional:            true,
								Validators: []validator.String{stringvalidator.RegexMatches(
									regexp.MustCompile(`^[\w+=,.@-]{2,64}$`),
									"must have 2 to 64 letters, digits and _+=,.@-")},
							},
						},
					},
					"encrypt": schema.BoolAttribute{
						MarkdownDescription: "Ask the store to encrypt each object with its own keys (SSE-S3), as " +
							"some bucket policies demand. Without `encrypt` and `kms_key_id`, the bucket's default " +
							"encryption applies. For `s3`.",
						Optional: true,
					},
					"kms_key_id": schema.StringAttribute{
						MarkdownDescription: "ARN or ID of the KMS key with which the store must encrypt each object " +
							"(SSE-KMS). For `s3`.",
						Optional:   true,
						Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
					},
				},
			},
			"secrets": schema.SingleNestedAttribute{
				MarkdownDescription: "Where the cluster's secrets are kept, the same as in `cluster.secrets` of its " +
					"`nstance_shard`s. Default: sealed in the bucket. Credentials and region of a service in " +
					"another cloud than the bucket come from the usual places of its SDK.",
				Optional: true,
				Attributes: map[string]schema.Attribute{
					"provider": schema.StringAttribute{
						MarkdownDescription: "Where the secrets are " +
							"kept: " + name.List(config.SecretsStoreNames()) + ".",
						Required:   true,
						Validators: []validator.String{stringvalidator.OneOf(config.SecretsStoreNames()...)},
					},
					"prefix": schema.StringAttribute{
						MarkdownDescription: "Prefix of the names of all secrets, such as `nstance/example/`. " +
							"Parameter Store needs a slash at its beginning.", Optional: true},
					"project_id": schema.StringAttribute{
						MarkdownDescription: "Project that holds the secrets. For " +
							name.List(config.SecretsStoresWithProject()) + ".", Optional: true},
				},
			},
			"encryption_key": schema.SingleNestedAttribute{
				MarkdownDescription: "The key that seals (encrypts) secrets in the bucket: 32 bytes, raw or base64. " +
					"The servers use the same key.",
				Optional:   true,
				Attributes: key,
			},
			"old_encryption_keys": schema.ListNestedAttribute{
				MarkdownDescription: "Earlier encryption keys. They only open secrets that were sealed before the " +
					"key was changed.",
				Optional:     true,
				NestedObject: schema.NestedAttributeObject{Attributes: key},
			},
			"operator": schema.SingleNestedAttribute{
				MarkdownDescription: "How `nstance_group` calls the servers of shards: as an operator, with an " +
					"identity in a directory or in three PEM texts. Keys and certificates may be " +
					"ephemeral values, such as those of `nstance_operator_identity` from another configuration of " +
					"this provider.",
				Optional: true,
				Attributes: map[string]schema.Attribute{
					"servers": schema.MapAttribute{
						MarkdownDescription: "Operator addresses by shard: `host:port`, or several with commas " +
							"between them, which are tried in turn. For a shard that is not listed, the address " +
							"comes from its leader's lock in the bucket. Default: the variable " +
							"`" + serversVariable + "`.",
						Optional: true, ElementType: types.StringType,
						Validators: []validator.Map{
							mapvalidator.KeysAre(name.Valid("shard", ident.ValidateName)),
							mapvalidator.ValueStringsAre(name.Parsed("address", endpoints.ParseAddrs)),
						},
					},
					"via": schema.MapAttribute{
						MarkdownDescription: "Ways to the servers of shards that this machine cannot reach, by " +
							"shard: " + tunnel.Forms + ". The server's certificate is verified for its own address. " +
							"Default: the variable `" + viaVariable + "`.",
						Optional: true, ElementType: types.StringType,
						Validators: []validator.Map{
							mapvalidator.KeysAre(name.Valid("shard", ident.ValidateName)),
							mapvalidator.ValueStringsAre(name.Parsed("way", tunnel.ParseWay)),
						},
					},
					"identity_dir": schema.StringAttribute{
						MarkdownDescription: "Directory with `ca.crt`, `identity.crt` and `identity.key`, as " +
							"`nstance-admin cluster register-operator --output-dir` writes it. Default: the " +
							"variable `" + identityVariable + "`.",
						Optional: true,
						Validators: []validator.String{stringvalidator.ConflictsWith(
							part("ca_certificate_pem"), part("certificate_pem"), part("private_key_pem"))},
					},
					"ca_certificate_pem": schema.StringAttribute{
						MarkdownDescription: "The cluster's CA certificates.", Optional: true,
						Validators: []validator.String{stringvalidator.AlsoRequires(part("certificate_pem"),
							part("private_key_pem"))},
					},
					"certificate_pem": schema.StringAttribute{
						MarkdownDescription: "The operator's certificate.", Optional: true,
						Validators: []validator.String{stringvalidator.AlsoRequires(part("ca_certificate_pem"),
							part("private_key_pem"))},
					},
					"private_key_pem": schema.StringAttribute{
						MarkdownDescription: "The operator's private key.", Optional: true, Sensitive: true,
						Validators: []validator.String{stringvalidator.AlsoRequires(part("ca_certificate_pem"),
							part("certificate_pem"))},
					},
				},
			},
		},
	}
}

// part returns the path of an attribute of the operator block.
func part(name string) path.Expression { return path.MatchRoot("operator").AtName(name) }
