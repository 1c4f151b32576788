output "storage" {
  description = "The bucket, for the configuration of the provider `nstance`."
  value       = module.cluster.storage
}

output "bucket" {
  description = "Name of the bucket."
  value       = module.cluster.cluster.bucket
}

output "shards" {
  description = "The shards by zone, each with its leader's addresses and its resources."
  value       = { for zone, shard in module.shard : zone => shard.shard }
}

output "servers" {
  description = "The leaders' addresses for nstance-admin, as the value of NSTANCE_ADMIN_SERVERS."
  value       = join(",", [for shard in module.shard : "${shard.shard.id}=${shard.shard.operator_addr}"])
}

data "nstance_admin_context" "this" {
  name           = module.cluster.cluster.id
  servers        = { for name, shard in module.shard : name => shard.shard.operator_addr }
  storage        = module.cluster.storage
  secrets        = module.cluster.secrets
  encryption_key = module.cluster.encryption_key
}

output "admin_context" {
  description = "A context for nstance-admin: `tofu output -raw admin_context | nstance-admin context import -` adds it. It has no secrets."
  value       = data.nstance_admin_context.this.json
}
