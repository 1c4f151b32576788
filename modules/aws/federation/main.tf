# IAM roles for the servers of shards on Google Cloud. The bucket of their cluster is on AWS. No key is stored: each role
# trusts the identity tokens of one service account.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  name = coalesce(var.name, var.cluster.id)
  tags = merge({ "nstance:cluster" = var.cluster.id }, var.tags)

  # Names of roles have at most 64 characters.
  long_names = { for shard, grant in var.shards : shard => "${local.name}-nstance-google-${shard}" }
  names      = { for shard, name in local.long_names : shard => length(name) <= 64 ? name : "${substr(name, 0, 55)}-${substr(sha1(name), 0, 8)}" }

  # The servers ask Google for tokens whose audience is the role's ARN, so a token for another role is of no use here.
  arns = { for shard, name in local.names : shard => "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:role${var.path}${name}" }
}

resource "aws_iam_role" "server" {
  for_each             = var.shards
  name                 = local.names[each.key]
  path                 = var.path
  description          = "Servers of the Nstance shard ${var.cluster.id}/${each.key} on Google Cloud."
  assume_role_policy   = jsonencode(local.trust_policies[each.key])
  permissions_boundary = var.permissions_boundary
  tags                 = merge(local.tags, { "nstance:shard" = each.key })
}

resource "aws_iam_role_policy" "server" {
  for_each = var.shards
  name     = "nstance-server"
  role     = aws_iam_role.server[each.key].name
  policy   = local.server_policies[each.key]
}
