output "shard" {
  description = "Name of the shard, which is the value of --shard of its servers."
  value       = nstance_shard.this.shard
}

output "addresses" {
  description = "Addresses at which agents and operators reach the shard's leader."
  value       = local.addresses
}

data "nstance_admin_context" "this" {
  name    = var.cluster
  servers = { (var.shard) = join(",", [for n in range(var.servers) : "127.0.0.1:${var.first_port + 3 + 10 * n}"]) }
}

output "admin_context" {
  description = "A context for nstance-admin: `tofu output -raw admin_context | nstance-admin context import -` adds it. It has no secrets."
  value       = data.nstance_admin_context.this.json
}
