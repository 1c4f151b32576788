output "bucket" {
  description = "Name of the bucket."
  value       = module.cluster.cluster.bucket
}

output "encryption_key" {
  description = "Where the encryption key is, for nstance-admin: --key-provider and --key-source."
  value       = module.cluster.encryption_key
}

output "shard" {
  description = "The shard: its leader's addresses, and what it is made of."
  value       = module.shard.shard
}

output "servers" {
  description = "The leader's address, for nstance-admin: NSTANCE_ADMIN_SERVERS."
  value       = "${module.shard.shard.id}=${module.shard.shard.operator_addr}"
}

output "ca_certificate_pem" {
  description = "The CA's certificate, for operators."
  value       = module.cluster.ca_certificate_pem
}

output "operator_values" {
  description = "For nstance-operator: `helm_values` is a file of Helm values, and `config_map` a manifest with these values for Flux."
  value       = module.operator.operator_values
}
