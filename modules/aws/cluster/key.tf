# The encryption key is created here and written to the secrets service. It is then read back to encrypt the cluster's
# first secrets. After an apply that failed halfway, the next apply therefore uses the stored key instead of a new one.
# The key is not in the plan or the state.

ephemeral "nstance_encryption_key" "this" {}

locals {
  # Only secrets in the bucket are encrypted with this key.
  sealed             = var.secrets.provider == "object-storage"
  in_secrets_manager = local.sealed && var.encryption_key.provider == "aws-secrets-manager"
  in_parameter_store = local.sealed && var.encryption_key.provider == "aws-parameter-store"
  secrets_prefix = (local.sealed ? "" : var.secrets.prefix != null ? var.secrets.prefix
    : var.secrets.provider == "aws-parameter-store" ? "/nstance/${var.cluster_id}/" : "nstance/${var.cluster_id}/"
  )
}

resource "aws_secretsmanager_secret" "key" {
  count                   = local.in_secrets_manager ? 1 : 0
  name                    = "nstance/${var.cluster_id}/encryption-key"
  description             = "Seals the secrets of the Nstance cluster ${var.cluster_id}."
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = var.force_destroy ? 0 : 30
  tags                    = local.tags
}

resource "aws_secretsmanager_secret_version" "key" {
  count                    = local.in_secrets_manager ? 1 : 0
  secret_id                = aws_secretsmanager_secret.key[0].id
  secret_string_wo         = ephemeral.nstance_encryption_key.this.key_base64
  secret_string_wo_version = var.encryption_key.version
}

ephemeral "aws_secretsmanager_secret_version" "key" {
  count      = local.in_secrets_manager ? 1 : 0
  secret_id  = aws_secretsmanager_secret_version.key[0].secret_id
  version_id = aws_secretsmanager_secret_version.key[0].version_id
}

resource "aws_ssm_parameter" "key" {
  count            = local.in_parameter_store ? 1 : 0
  name             = "/nstance/${var.cluster_id}/encryption-key"
  description      = "Seals the secrets of the Nstance cluster ${var.cluster_id}."
  type             = "SecureString"
  key_id           = var.kms_key_arn
  value_wo         = ephemeral.nstance_encryption_key.this.key_base64
  value_wo_version = var.encryption_key.version
  tags             = local.tags
}

ephemeral "aws_ssm_parameter" "key" {
  count           = local.in_parameter_store ? 1 : 0
  arn             = aws_ssm_parameter.key[0].arn
  with_decryption = true
}

locals {
  encryption_key = one(concat(
    [for key in aws_secretsmanager_secret.key : { provider = "aws-secrets-manager", source = key.arn, arn = key.arn }],
    [for key in aws_ssm_parameter.key : { provider = "aws-parameter-store", source = key.name, arn = key.arn }],
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
  encryption_key_wo = (local.in_secrets_manager
    ? one(ephemeral.aws_secretsmanager_secret_version.key[*].secret_string)
    : one(ephemeral.aws_ssm_parameter.key[*].value)
  )
  encryption_key_wo_version = var.encryption_key.version
  force_destroy             = var.force_destroy
}
