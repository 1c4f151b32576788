output "bucket" {
  description = "Name of the bucket."
  value       = module.cluster.cluster.bucket
}

output "encryption_key" {
  description = "Where the encryption key is, for nstance-admin: --key-provider and --key-source."
  value       = { provider = module.cluster.cluster.encryption_key.provider, source = module.cluster.cluster.encryption_key.source }
}

output "shard" {
  description = "The shard: its leader's addresses, and what it is made of."
  value       = module.shard.shard
}

output "ca_certificate_pem" {
  description = "The CA's certificate, for operators."
  value       = module.cluster.ca_certificate_pem
}
