output "storage" {
  description = "The bucket, for `storage` in the configuration of the provider `nstance`. It is known when planning."
  value = {
    provider = "s3"
    bucket   = aws_s3_bucket.this.bucket
    prefix   = var.prefix
    region   = data.aws_region.current.id
  }
}

output "encryption_key" {
  description = "Where the encryption key is, for `encryption_key` in the configuration of the provider `nstance`, which `nstance_secret` needs."
  value = {
    provider = var.encryption_key.provider
    source   = local.key_source
  }
}

output "cluster" {
  description = "The cluster, for the variable `cluster` of the other modules."
  value = {
    id          = nstance_cluster.this.id
    bucket      = aws_s3_bucket.this.bucket
    bucket_arn  = aws_s3_bucket.this.arn
    prefix      = var.prefix
    region      = data.aws_region.current.id
    kms_key_arn = var.kms_key_arn
    encryption_key = {
      provider = var.encryption_key.provider
      source   = local.key_source
      arn      = local.key_arn
    }
  }
}

output "ca_certificate_pem" {
  description = "The CA's certificate, in PEM."
  value       = nstance_cluster.this.ca_certificate_pem
}

output "ca_fingerprint" {
  description = "SHA-256 of the CA's certificate, in hexadecimal."
  value       = nstance_cluster.this.ca_fingerprint
}

output "ca_not_after" {
  description = "When the CA's certificate expires (RFC 3339)."
  value       = nstance_cluster.this.ca_not_after
}
