output "shard" {
  description = "Addresses of the shard."
  value       = module.shard.shard
}

output "server_userdata" {
  description = "The boot script of the servers."
  value       = module.shard.server_userdata
}
