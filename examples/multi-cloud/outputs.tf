output "buckets" {
  description = "Names of the buckets: that of the cluster and of the shard on AWS, and that of the shard on Google Cloud."
  value       = { cluster = module.cluster.cluster.bucket, google = module.google_cluster.cluster.bucket }
}

output "encryption_key" {
  description = "Where the encryption key is stored: the values of --key-provider and --key-source for nstance-admin."
  value       = module.cluster.encryption_key
}

output "shards" {
  description = "The shards' resources and their leaders' addresses."
  value       = { aws = module.aws_shard.shard, google = module.google_shard.shard }
}

output "ca_certificate_pem" {
  description = "The CA's certificate, with which operators verify the servers of both shards."
  value       = module.cluster.ca_certificate_pem
}

output "operator_values" {
  description = "Values for nstance-operator: `helm_values` is a file of Helm values, and `config_map` is a manifest with these values for Flux."
  value       = module.operator.operator_values
}

output "admin_context" {
  description = "A context for nstance-admin with both shards: `tofu output -raw admin_context | nstance-admin context import -` adds it. It has no secrets."
  value       = data.nstance_admin_context.this.json
}
