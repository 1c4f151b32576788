output "bucket" {
  description = "Name of the bucket."
  value       = module.fleet.bucket
}

output "shards" {
  description = "The shards by zone, each with its leader's addresses and its resources."
  value       = module.fleet.shards
}

output "servers" {
  description = "The leaders' addresses for nstance-admin, as the value of NSTANCE_ADMIN_SERVERS."
  value       = module.fleet.servers
}
