output "bucket" {
  description = "Name of the bucket."
  value       = module.cluster.cluster.bucket
}

output "encryption_key" {
  description = "Where the encryption key is stored: the values of --key-provider and --key-source for nstance-admin."
  value       = module.cluster.encryption_key
}

output "url" {
  description = "URL of the web servers."
  value       = "http://${module.network.network.load_balancers.web.dns_name}/"
}

output "shards" {
  description = "The shards by name, each with its leader's addresses and its resources."
  value       = { for name, shard in module.shard : name => shard.shard }
}

output "servers" {
  description = "The leaders' addresses for nstance-admin, as the value of NSTANCE_ADMIN_SERVERS."
  value       = join(",", [for name, shard in module.shard : "${name}=${shard.shard.operator_addr}"])
}

output "ca_certificate_pem" {
  description = "The CA's certificate, with which operators verify the servers."
  value       = module.cluster.ca_certificate_pem
}

output "operator_values" {
  description = "Values for nstance-operator: `helm_values` is a file of Helm values, and `config_map` is a manifest with these values for Flux."
  value       = module.operator.operator_values
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
