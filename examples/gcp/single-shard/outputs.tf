output "bucket" {
  description = "Name of the bucket."
  value       = module.cluster.cluster.bucket
}

output "encryption_key" {
  description = "Where the encryption key is stored: the values of --key-provider and --key-source for nstance-admin. Null if the cluster's secrets are in Secret Manager."
  value       = module.cluster.encryption_key
}

output "shard" {
  description = "The shard's resources and its leader's addresses."
  value       = module.shard.shard
}

output "servers" {
  description = "The leader's address for nstance-admin, as the value of NSTANCE_ADMIN_SERVERS."
  value       = "${module.shard.shard.id}=${module.shard.shard.operator_addr}"
}

output "ca_certificate_pem" {
  description = "The CA's certificate, with which operators verify the servers. Null if the servers make the CA."
  value       = module.cluster.ca_certificate_pem
}

output "admin_context" {
  description = "A context for nstance-admin: `tofu output -raw admin_context | nstance-admin context import -` adds it. It has no secrets."
  value       = module.shard.admin_context
}
