output "shard" {
  description = "Addresses of the shard for operators and agents."
  value       = module.shard.shard
}

output "server_userdata" {
  description = "The boot script of the servers."
  value       = module.shard.server_userdata
}

output "admin_context" {
  description = "A context for nstance-admin: `tofu output -raw admin_context | nstance-admin context import -` adds it. It has no secrets."
  value       = module.shard.admin_context
}
