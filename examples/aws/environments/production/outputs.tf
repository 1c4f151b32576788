output "bucket" {
  description = "Name of the bucket."
  value       = module.fleet.bucket
}

output "encryption_key" {
  description = "Where the encryption key is stored: the values of --key-provider and --key-source for nstance-admin."
  value       = module.fleet.encryption_key
}

output "shards" {
  description = "The shards by zone, each with its leader's addresses and its resources."
  value       = module.fleet.shards
}

output "servers" {
  description = "The leaders' addresses for nstance-admin, as the value of NSTANCE_ADMIN_SERVERS."
  value       = module.fleet.servers
}

output "admin_context" {
  description = "A context for nstance-admin: `tofu output -raw admin_context | nstance-admin context import -` adds it. It has no secrets."
  value       = module.fleet.admin_context
}
