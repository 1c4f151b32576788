# The encryption key is created here and written to the secrets service. The provider nstance reads it from there. After
# an apply that failed halfway, the next apply therefore uses the stored key instead of a new one. The key is not in the
# plan or the state.
#
# Each version of the key, in each service, is a secret with a name that was not used before. Another version or service
# therefore makes a second secret, nstance_cluster opens the cluster's secrets with the first key and seals them with
# the second, and the first secret is destroyed last (create_before_destroy).

ephemeral "nstance_encryption_key" "this" {}

locals {
  # Only secrets in the bucket are encrypted with this key.
  sealed             = var.secrets.provider == "object-storage" && var.primary == null
  in_secrets_manager = local.sealed && var.encryption_key.provider == "aws-secrets-manager"
  in_parameter_store = local.sealed && var.encryption_key.provider == "aws-parameter-store"
  secrets_prefix = (var.secrets.provider == "object-storage" ? "" : var.secrets.prefix != null ? var.secrets.prefix
    : var.secrets.provider == "aws-parameter-store" ? "/nstance/${var.cluster_id}/" : "nstance/${var.cluster_id}/"
  )
}

resource "aws_secretsmanager_secret" "key" {
  count = local.in_secrets_manager ? 1 : 0
  # The provider appends a unique suffix. The name of a destroyed secret stays in use for 30 days.
  name_prefix             = "nstance/${var.cluster_id}/encryption-key-${var.encryption_key.version}-"
  description             = "Seals the secrets of the Nstance cluster ${var.cluster_id}."
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = var.force_destroy ? 0 : 30
  tags                    = local.tags

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_secretsmanager_secret_version" "key" {
  count                    = local.in_secrets_manager ? 1 : 0
  secret_id                = aws_secretsmanager_secret.key[0].id
  secret_string_wo         = ephemeral.nstance_encryption_key.this.key_base64
  secret_string_wo_version = 1

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_ssm_parameter" "key" {
  count            = local.in_parameter_store ? 1 : 0
  name             = "/nstance/${var.cluster_id}/encryption-key-${var.encryption_key.version}"
  description      = "Seals the secrets of the Nstance cluster ${var.cluster_id}."
  type             = "SecureString"
  key_id           = var.kms_key_arn
  value_wo         = ephemeral.nstance_encryption_key.this.key_base64
  value_wo_version = 1
  tags             = local.tags

  lifecycle {
    create_before_destroy = true
  }
}

locals {
  # Users of this value get the ARN of the secret only after the secret has its value.
  encryption_key = one(concat(
    [for key in aws_secretsmanager_secret_version.key : { provider = "aws-secrets-manager", source = key.secret_id, arn = key.secret_id }],
    [for key in aws_ssm_parameter.key : { provider = "aws-parameter-store", source = key.arn, arn = key.arn }],
  ))
}

resource "nstance_cluster" "this" {
  count = local.sealed ? 1 : 0

  # The cluster is created after these resources and destroyed before them. The CA is therefore never in a bucket that
  # is not yet private.
  depends_on = [
    aws_s3_bucket_public_access_block.this,
    aws_s3_bucket_ownership_controls.this,
    aws_s3_bucket_server_side_encryption_configuration.this,
    aws_s3_bucket_versioning.this,
    aws_s3_bucket_policy.this,
  ]

  id = var.cluster_id
  encryption_key = {
    provider = local.encryption_key.provider
    source   = local.encryption_key.source
  }
  ca_early_renewal    = var.ca_early_renewal
  deletion_protection = var.deletion_protection
  force_destroy       = var.force_destroy
}
