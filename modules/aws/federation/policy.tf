# The permissions of the roles, as data. They reach the cluster's own objects and nothing else: no VM, no network, and
# no configuration, record or file of a shard.

locals {
  key_prefix = var.cluster.prefix == "" ? "" : "${var.cluster.prefix}/"
  objects    = "${var.cluster.bucket_arn}/${local.key_prefix}"

  # AWS knows the issuer accounts.google.com without a provider in IAM. For a service account, sub and azp are its unique
  # ID. If a token has azp, the key aud is azp, and the key oaud is the token's audience.
  # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html
  trust_policies = { for shard, grant in var.shards : shard => {
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Federated = "accounts.google.com" }
      Action    = "sts:AssumeRoleWithWebIdentity"
      Condition = { StringEquals = {
        "accounts.google.com:sub"  = grant.service_account_id
        "accounts.google.com:aud"  = grant.service_account_id
        "accounts.google.com:oaud" = local.arns[shard]
      } }
    }]
  } }

  well_known_secrets = ["ca.key", "registration-nonce.key", "workload-ca.key"]
  read_key           = { aws-secrets-manager = "secretsmanager:GetSecretValue", aws-parameter-store = "ssm:GetParameter" }

  server_policies = { for shard, grant in var.shards : shard => jsonencode({
    Version = "2012-10-17"
    Statement = concat([
      {
        Sid    = "ReadCluster"
        Effect = "Allow"
        Action = "s3:GetObject"
        Resource = [for name in concat(
          ["cluster/ca.crt", "cluster/key/*", "cluster/operator/*", "shard/${shard}/probe/*"],
          [for secret in distinct(concat(local.well_known_secrets, grant.secrets)) : "cluster/secret/${secret}"],
        ) : "${local.objects}${name}"]
      },
      {
        Sid    = "WriteCluster"
        Effect = "Allow"
        Action = "s3:PutObject"
        Resource = [for name in concat(
          ["cluster/ca.crt", "cluster/key/*", "cluster/operator/*", "shard/${shard}/probe/*"],
          [for secret in local.well_known_secrets : "cluster/secret/${secret}"],
        ) : "${local.objects}${name}"]
      },
      {
        Sid      = "DeleteProbes"
        Effect   = "Allow"
        Action   = "s3:DeleteObject"
        Resource = ["${local.objects}shard/${shard}/probe/*"]
      },
      {
        # For a missing object S3 answers 404 only to callers with ListBucket permission, and 403 to others. A request
        # for an object has no prefix, so the condition uses IfExists.
        Sid       = "ListCluster"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = var.cluster.bucket_arn
        Condition = { StringLikeIfExists = { "s3:prefix" = ["${local.key_prefix}cluster/operator/*"] } }
      },
      {
        Sid      = "ReadEncryptionKey"
        Effect   = "Allow"
        Action   = local.read_key[var.cluster.encryption_key.provider]
        Resource = var.cluster.encryption_key.arn
      },
      ], [for arn in [var.cluster.kms_key_arn] : {
        Sid      = "UseKMSKey"
        Effect   = "Allow"
        Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource = arn
    } if arn != null])
  }) }
}
