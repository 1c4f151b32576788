# The encryption key is made here, written to the secrets service, and read back from there for the cluster's first secrets. It is read back so that an
# apply which failed half-way goes on with the key that is stored and not with another. None of it is in plan or state.

ephemeral "nstance_encryption_key" "this" {}

locals {
  # Secrets that are not in the bucket are not sealed.
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

  # Destroyed before any of these, and made after them: the CA is never in a bucket that is not private yet.
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
