# The bucket holds the only durable state of the cluster.

resource "aws_s3_bucket" "this" {
  # Destroy deletes the bucket first: while anything is left in it, the key is not scheduled for deletion. A parameter
  # cannot be ordered in this way, because its value comes from the provider nstance, which needs the bucket.
  depends_on = [aws_secretsmanager_secret.key]

  bucket        = local.bucket_name
  force_destroy = var.force_destroy
  tags          = local.tags

  lifecycle {
    precondition {
      condition     = var.primary == null ? true : var.primary.id == var.cluster_id
      error_message = "primary is of another cluster than cluster_id."
    }
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    bucket_key_enabled = var.kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_versioning" "this" {
  count  = var.versioning ? 1 : 0
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  count      = var.versioning ? 1 : 0
  depends_on = [aws_s3_bucket_versioning.this]
  bucket     = aws_s3_bucket.this.id

  # If two rules match an object, the shorter time applies.
  rule {
    id     = "earlier-versions"
    status = "Enabled"

    filter {
      prefix = local.key_prefix
    }

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_version_days
    }

    # A delete marker without earlier versions is removed. Otherwise every deleted object leaves one forever.
    expiration {
      expired_object_delete_marker = true
    }
  }

  # Servers rewrite the lock every few seconds.
  rule {
    id     = "earlier-versions-of-servers-documents"
    status = "Enabled"

    filter {
      prefix = "${local.key_prefix}shard/"
    }

    noncurrent_version_expiration {
      noncurrent_days = 1
    }

    expiration {
      expired_object_delete_marker = true
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  # S3 accepts only one change of a bucket's access settings at a time.
  depends_on = [aws_s3_bucket_public_access_block.this, aws_s3_bucket_ownership_controls.this]
  bucket     = aws_s3_bucket.this.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OnlyTLS"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.this.arn, "${aws_s3_bucket.this.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}
