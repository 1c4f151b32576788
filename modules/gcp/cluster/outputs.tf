output "storage" {
  description = "The bucket, as the value of `storage` in the configuration of the provider `nstance`. The output is known when planning."
  value = {
    provider = "gcs"
    bucket   = google_storage_bucket.this.name
    prefix   = var.prefix
  }
}

output "encryption_key" {
  description = "Value of `encryption_key` in the configuration of the provider `nstance`. `nstance_secret` needs it. Null if the secrets are not in the bucket."
  value       = local.encryption_key
}

output "secrets" {
  description = "Value of `secrets` in the configuration of the provider `nstance`. `nstance_secret` and `nstance_operator` need it if the secrets are not in the bucket."
  value       = local.secrets
}

output "cluster" {
  description = "The cluster, as the value of the variable `cluster` of the other modules."
  # Shards are created after the CA and destroyed before it.
  depends_on = [nstance_cluster.this]
  value = {
    id             = var.cluster_id
    bucket         = google_storage_bucket.this.name
    prefix         = var.prefix
    project        = local.project
    kms_key_name   = var.kms_key_name
    secrets        = local.secrets
    encryption_key = local.encryption_key
    primary        = var.primary
  }
}

output "primary" {
  description = "The cluster's bucket, secrets and encryption key, as the value of the variable `primary` of the module `cluster` of another cloud."
  # Shards are created after the CA and destroyed before it.
  depends_on = [nstance_cluster.this]
  value = var.primary != null ? var.primary : {
    id             = var.cluster_id
    storage        = { provider = "gcs", bucket = google_storage_bucket.this.name, prefix = var.prefix == "" ? null : var.prefix, region = null, endpoint = null }
    secrets        = { provider = local.secrets.provider, prefix = local.secrets.prefix == "" ? null : local.secrets.prefix, project_id = local.secrets.project_id }
    encryption_key = local.encryption_key
  }
}

output "ca_certificate_pem" {
  description = "The CA's certificate, in PEM. Null if the servers make the CA."
  value       = one(nstance_cluster.this[*].ca_certificate_pem)
}
