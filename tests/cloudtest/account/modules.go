package account

// ModuleResources maps each type of resource that the modules of a cloud make to the kind of the inventory that has it.
// A type without a kind is in the inventory of no account, for the reason in [WithoutKind].
var ModuleResources = map[string]string{
	"aws_autoscaling_group": "auto scaling group", "aws_egress_only_internet_gateway": "egress-only internet gateway",
	"aws_eip": "address", "aws_iam_instance_profile": "instance profile", "aws_iam_role": "role",
	"aws_internet_gateway": "internet gateway", "aws_launch_template": "launch template", "aws_lb": "load balancer",
	"aws_lb_target_group": "target group", "aws_nat_gateway": "NAT gateway",
	"aws_network_interface": "network interface",
	"aws_route_table":       "route table", "aws_s3_bucket": "bucket", "aws_secretsmanager_secret": "secret",
	"aws_security_group": "security group", "aws_ssm_parameter": "parameter", "aws_subnet": "subnet", "aws_vpc": "vpc",
	"aws_vpc_endpoint": "endpoint",

	"google_compute_address": "address", "google_compute_firewall": "firewall rule",
	"google_compute_forwarding_rule": "forwarding rule", "google_compute_health_check": "health check",
	"google_compute_instance_group":         "instance group",
	"google_compute_instance_group_manager": "instance group manager",
	"google_compute_network":                "network", "google_compute_region_backend_service": "backend service",
	"google_compute_region_health_check":      "regional health check",
	"google_compute_region_instance_template": "instance template", "google_compute_router": "router",
	"google_compute_subnetwork": "subnet", "google_iam_workload_identity_pool": "workload identity pool",
	"google_project_iam_custom_role": "custom role", "google_project_iam_member": "binding of the project",
	"google_service_account": "service account", "google_storage_bucket": "bucket",
}

// The reasons why a type of resource is in no inventory.
const (
	withParent = "it is part of another resource, and is deleted with that one"
	ofUser     = "it is in something of the user's own that the example of cloud-test does not use, and costs nothing"
	noResource = "it is nothing in the cloud: a document in the bucket, or something that OpenTofu only waits for"
)

// WithoutKind maps the types of resources of the modules that no inventory has to the reasons.
var WithoutKind = map[string]string{
	"aws_autoscaling_lifecycle_hook": withParent, "aws_iam_role_policy": withParent, "aws_lb_listener": withParent,
	"aws_route": withParent, "aws_route_table_association": withParent,
	"aws_s3_bucket_lifecycle_configuration": withParent, "aws_s3_bucket_ownership_controls": withParent,
	"aws_s3_bucket_policy": withParent, "aws_s3_bucket_public_access_block": withParent,
	"aws_s3_bucket_server_side_encryption_configuration": withParent, "aws_s3_bucket_versioning": withParent,
	"aws_secretsmanager_secret_version": withParent, "aws_vpc_security_group_egress_rule": withParent,
	"aws_vpc_security_group_ingress_rule": withParent,
	"google_compute_router_nat":           withParent, "google_iam_workload_identity_pool_provider": withParent,
	"google_service_account_iam_member": withParent, "google_storage_bucket_iam_member": withParent,

	"aws_route53_record":                      ofUser + ": a record in the zone of leader_dns",
	"google_dns_record_set":                   ofUser + ": a record in the zone of leader_dns",
	"google_kms_crypto_key_iam_member":        ofUser + ": a binding of the key of kms_key_name",
	"google_secret_manager_secret_iam_member": ofUser + ": a binding of the secret of encryption_key",

	"nstance_cluster": noResource, "nstance_servers_ready": noResource, "nstance_shard": noResource,
	"terraform_data": noResource,
}
