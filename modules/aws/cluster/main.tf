# Resources that all shards of a cluster share: the bucket, the key that encrypts the secrets in the bucket, and the CA.

data "aws_caller_identity" "current" {}
data "aws_region" "current" {}

locals {
  bucket_name = coalesce(var.bucket_name, "${var.cluster_id}-${data.aws_caller_identity.current.account_id}-${data.aws_region.current.id}")
  key_prefix  = var.prefix == "" ? "" : "${var.prefix}/"
  tags        = merge({ "nstance:cluster" = var.cluster_id }, var.tags)
}
