output "bucket" {
  description = "Name of the bucket."
  value       = module.cluster.cluster.bucket
}

output "encryption_key" {
  description = "Where the encryption key is, for nstance-admin: --key-provider and --key-source."
  value       = module.cluster.encryption_key
}

output "url" {
  description = "Where the web servers are reached."
  value       = "http://${module.network.network.load_balancers.web.dns_name}/"
}

output "shards" {
  description = "The shards by name: their leaders' addresses, and what they are made of."
  value       = { for name, shard in module.shard : name => shard.shard }
}

output "servers" {
  description = "The leaders' addresses, for nstance-admin: NSTANCE_ADMIN_SERVERS."
  value       = join(",", [for name, shard in module.shard : "${name}=${shard.shard.operator_addr}"])
}

output "ca_certificate_pem" {
  description = "The CA's certificate, for operators."
  value       = module.cluster.ca_certificate_pem
}

output "operator_values" {
  description = "For nstance-operator: `helm_values` is a file of Helm values, and `config_map` a manifest with these values for Flux."
  value       = module.operator.operator_values
}
