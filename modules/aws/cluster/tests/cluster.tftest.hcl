# These tests run under OpenTofu only, because Terraform's mocks do not support ephemeral resources. They only plan,
# because the value that OpenTofu generates for an ephemeral key is not a valid key.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_region" {
    defaults = { id = "us-west-2" }
  }
}

mock_provider "nstance" {}

variables {
  cluster_id = "example"
}

run "defaults" {
  command = plan

  assert {
    condition     = output.storage.bucket == "example-123456789012-us-west-2" && output.storage.provider == "s3" && output.storage.region == "us-west-2" && output.storage.prefix == ""
    error_message = "storage has to be known when planning: ${jsonencode(output.storage)}"
  }
  assert {
    condition     = !aws_s3_bucket.this.force_destroy && !nstance_cluster.this[0].force_destroy && length(aws_s3_bucket_versioning.this) == 1
    error_message = "the bucket is not protected"
  }
  assert {
    condition     = aws_s3_bucket_public_access_block.this.block_public_acls && aws_s3_bucket_public_access_block.this.block_public_policy && aws_s3_bucket_public_access_block.this.ignore_public_acls && aws_s3_bucket_public_access_block.this.restrict_public_buckets
    error_message = "the bucket is not private"
  }
  assert {
    condition     = one(aws_s3_bucket_ownership_controls.this.rule).object_ownership == "BucketOwnerEnforced"
    error_message = "objects may have other owners"
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    error_message = "the bucket is not encrypted"
  }
  assert {
    condition     = [for rule in aws_s3_bucket_lifecycle_configuration.this[0].rule : [one(rule.filter).prefix, one(rule.noncurrent_version_expiration).noncurrent_days]] == [["", 90], ["shard/", 1]]
    error_message = "earlier versions are not kept for the given days"
  }
  assert {
    condition     = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.this[0].rule : one(rule.expiration).expired_object_delete_marker])
    error_message = "delete markers are kept forever"
  }
  assert {
    condition     = aws_secretsmanager_secret.key[0].name_prefix == "nstance/example/encryption-key-1-" && aws_secretsmanager_secret.key[0].recovery_window_in_days == 30 && length(aws_ssm_parameter.key) == 0
    error_message = "the key is not in Secrets Manager"
  }
  assert {
    condition     = aws_secretsmanager_secret_version.key[0].secret_string == null && aws_secretsmanager_secret_version.key[0].secret_string_wo == null && nstance_cluster.this[0].encryption_key.provider == "aws-secrets-manager"
    error_message = "the key is in the plan"
  }
}

run "choices" {
  command = plan

  variables {
    bucket_name             = "my-bucket"
    prefix                  = "clusters/example"
    noncurrent_version_days = 7
    kms_key_arn             = "arn:aws:kms:us-west-2:123456789012:key/00000000-0000-0000-0000-000000000000"
    encryption_key          = { provider = "aws-parameter-store", version = 3 }
    ca_early_renewal        = "90d"
    force_destroy           = true
    deletion_protection     = true
    tags                    = { team = "a" }
  }

  assert {
    condition     = output.storage.bucket == "my-bucket" && output.storage.prefix == "clusters/example"
    error_message = "storage is ${jsonencode(output.storage)}"
  }
  assert {
    condition     = [for rule in aws_s3_bucket_lifecycle_configuration.this[0].rule : [one(rule.filter).prefix, one(rule.noncurrent_version_expiration).noncurrent_days]] == [["clusters/example/", 7], ["clusters/example/shard/", 1]]
    error_message = "other keys of the bucket are touched"
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default).kms_master_key_id == var.kms_key_arn && aws_ssm_parameter.key[0].key_id == var.kms_key_arn
    error_message = "the KMS key is not used"
  }
  assert {
    condition     = aws_ssm_parameter.key[0].type == "SecureString" && aws_ssm_parameter.key[0].name == "/nstance/example/encryption-key-3" && aws_ssm_parameter.key[0].value_wo == null && nstance_cluster.this[0].encryption_key.provider == "aws-parameter-store"
    error_message = "the key is not in Parameter Store, in version 3"
  }
  assert {
    condition     = aws_s3_bucket.this.force_destroy && nstance_cluster.this[0].force_destroy && nstance_cluster.this[0].deletion_protection && length(aws_secretsmanager_secret.key) == 0
    error_message = "destroy is not forced, or the cluster is not protected"
  }
  assert {
    condition     = nstance_cluster.this[0].ca_early_renewal == "90d"
    error_message = "the CA is not replaced before its end"
  }
  assert {
    condition     = aws_s3_bucket.this.tags["nstance:cluster"] == "example" && aws_s3_bucket.this.tags["team"] == "a"
    error_message = "tags are missing"
  }
}

run "without_versioning" {
  command = plan

  variables {
    versioning = false
  }

  assert {
    condition     = length(aws_s3_bucket_versioning.this) == 0 && length(aws_s3_bucket_lifecycle_configuration.this) == 0
    error_message = "versioning is not off"
  }
}

run "secrets_in_parameter_store" {
  command = plan

  variables {
    secrets = { provider = "aws-parameter-store" }
  }

  assert {
    condition     = length(nstance_cluster.this) == 0 && length(aws_secretsmanager_secret.key) == 0 && length(aws_ssm_parameter.key) == 0
    error_message = "there is a key that seals nothing"
  }
  assert {
    condition     = output.secrets == output.cluster.secrets && output.cluster.secrets == { provider = "aws-parameter-store", prefix = "/nstance/example/" } && output.cluster.encryption_key == null && output.encryption_key == null
    error_message = "secrets are elsewhere: ${jsonencode(output.cluster.secrets)}"
  }
}

run "bad_secrets" {
  command = plan

  variables {
    secrets = { provider = "vault" }
  }

  expect_failures = [var.secrets]
}

run "bad_secrets_prefix" {
  command = plan

  variables {
    secrets = { provider = "aws-parameter-store", prefix = "nstance/example/" }
  }

  expect_failures = [var.secrets]
}

run "bad_names" {
  command = plan

  variables {
    cluster_id              = "Example--1"
    bucket_name             = "My_Bucket"
    prefix                  = "/a/"
    noncurrent_version_days = 0
    kms_key_arn             = "alias/mine"
  }

  expect_failures = [var.cluster_id, var.bucket_name, var.prefix, var.noncurrent_version_days, var.kms_key_arn]
}

run "bad_key" {
  command = plan

  variables {
    encryption_key = { provider = "vault", version = 0 }
  }

  expect_failures = [var.encryption_key]
}

run "primary" {
  command = plan
  variables {
    primary = {
      id             = "example"
      storage        = { provider = "gcs", bucket = "example-primary" }
      secrets        = { provider = "object-storage" }
      encryption_key = { provider = "env", source = "KEY" }
    }
  }
  assert {
    condition     = length(nstance_cluster.this) == 0 && output.encryption_key == null && output.cluster.primary.storage.bucket == "example-primary" && output.primary.storage.bucket == "example-primary"
    error_message = "a shard's bucket has a CA or a key of its own"
  }
}
