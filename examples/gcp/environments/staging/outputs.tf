output "bucket" {
  description = "Name of the bucket."
  value       = module.fleet.bucket
}

output "shards" {
  description = "The shards by zone: their leaders' addresses, and what they are made of."
  value       = module.fleet.shards
}

output "servers" {
  description = "The leaders' addresses, for nstance-admin: NSTANCE_ADMIN_SERVERS."
  value       = module.fleet.servers
}
