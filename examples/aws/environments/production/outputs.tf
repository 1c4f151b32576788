output "bucket" {
  description = "Name of the bucket."
  value       = module.fleet.bucket
}

output "shards" {
  description = "The shards by zone, each with its leader's addresses and its resources."
  value       = module.fleet.shards
}

output "admin_context" {
  description = "A context for nstance-admin: `tofu output -raw admin_context | nstance-admin context import -` adds it. It has no secrets."
  value       = module.fleet.admin_context
}
