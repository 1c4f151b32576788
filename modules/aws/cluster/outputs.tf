output "storage" {
  description = "The bucket, as the value of `storage` in the configuration of the provider `nstance`. The output is known when planning, if `kms_key_arn` is."
  value = {
    provider   = "s3"
    bucket     = aws_s3_bucket.this.bucket
    prefix     = var.prefix
    region     = data.aws_region.current.id
    encrypt    = true
    kms_key_id = var.kms_key_arn
  }
}

output "encryption_key" {
  description = "Value of `encryption_key` in the configuration of the provider `nstance`. `nstance_secret` needs it. Null if the secrets are not in the bucket."
  value       = local.encryption_key == null ? null : { provider = local.encryption_key.provider, source = local.encryption_key.source }
}

output "secrets" {
  description = "Value of `secrets` in the configuration of the provider `nstance`. `nstance_secret` and `nstance_operator` need it if the secrets are not in the bucket. It is known when planning."
  value       = { provider = var.secrets.provider, prefix = local.secrets_prefix }
}

output "cluster" {
  description = "The cluster, as the value of the variable `cluster` of the other modules."
  # Shards are created after the CA and destroyed before it.
  depends_on = [nstance_cluster.this]
  value = {
    id             = var.cluster_id
    bucket         = aws_s3_bucket.this.bucket
    bucket_arn     = aws_s3_bucket.this.arn
    prefix         = var.prefix
    region         = data.aws_region.current.id
    kms_key_arn    = var.kms_key_arn
    secrets        = { provider = var.secrets.provider, prefix = local.secrets_prefix }
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
    storage        = { provider = "s3", bucket = aws_s3_bucket.this.bucket, prefix = var.prefix == "" ? null : var.prefix, region = data.aws_region.current.id, endpoint = null }
    secrets        = { provider = var.secrets.provider, prefix = local.secrets_prefix == "" ? null : local.secrets_prefix, project_id = null }
    encryption_key = local.encryption_key == null ? null : { provider = local.encryption_key.provider, source = local.encryption_key.source }
  }
}

output "ca_certificate_pem" {
  description = "The CA's certificate, in PEM. Null if the servers make the CA."
  value       = one(nstance_cluster.this[*].ca_certificate_pem)
}
