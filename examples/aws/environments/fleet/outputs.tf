output "storage" {
  description = "The bucket, for the provider nstance."
  value       = module.cluster.storage
}

output "servers" {
  description = "The leaders' addresses, for nstance-admin: NSTANCE_ADMIN_SERVERS."
  value       = join(",", [for shard in module.shard : "${shard.shard.id}=${shard.shard.operator_addr}"])
}
