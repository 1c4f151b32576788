output "storage" {
  description = "The bucket, for the provider nstance."
  value       = module.cluster.storage
}

output "bucket" {
  description = "Name of the bucket."
  value       = module.cluster.cluster.bucket
}

output "shards" {
  description = "The shards by zone: their leaders' addresses, and what they are made of."
  value       = { for zone, shard in module.shard : zone => shard.shard }
}

output "servers" {
  description = "The leaders' addresses, for nstance-admin: NSTANCE_ADMIN_SERVERS."
  value       = join(",", [for shard in module.shard : "${shard.shard.id}=${shard.shard.operator_addr}"])
}
