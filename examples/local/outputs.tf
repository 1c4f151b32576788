output "shard" {
  description = "Name of the shard: the --shard of its servers."
  value       = nstance_shard.this.shard
}

output "addresses" {
  description = "Where the shard's leader is reached."
  value       = local.addresses
}

output "ca_fingerprint" {
  description = "SHA-256 of the cluster's CA certificate."
  value       = nstance_cluster.this.ca_fingerprint
}

output "ca_not_after" {
  description = "When the CA certificate expires."
  value       = nstance_cluster.this.ca_not_after
}

output "config_etag" {
  description = "Version of the shard's configuration. The leader's lock names the one that is applied."
  value       = nstance_shard.this.etag
}
