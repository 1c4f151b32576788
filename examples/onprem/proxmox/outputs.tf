output "shard" {
  description = "Addresses of the shard for operators and agents."
  value       = module.shard.shard
}

output "server_userdata" {
  description = "The boot script of the servers."
  value       = module.shard.server_userdata
}
