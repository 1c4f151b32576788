# IAM roles of the cluster: one for the servers of each shard, and one without permissions for the VMs that they start.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}
data "aws_default_tags" "current" {}

locals {
  partition      = data.aws_partition.current.partition
  region         = data.aws_region.current.id
  account_id     = data.aws_caller_identity.current.account_id
  name           = coalesce(var.name, var.cluster.id)
  tags           = merge({ "nstance:cluster" = var.cluster.id }, var.tags)
  agent_role_arn = aws_iam_role.agent.arn

  # In China, EC2 is ec2.amazonaws.com.cn.
  ec2_service = "ec2.${data.aws_partition.current.dns_suffix}"

  # The module shard sets these tags on VMs.
  own_tag_keys = keys(merge(data.aws_default_tags.current.tags, var.tags))

  # Names of roles have at most 64 characters.
  long_names   = { for shard, grant in var.shards : shard => "${local.name}-nstance-server-${shard}" }
  server_names = { for shard, name in local.long_names : shard => length(name) <= 64 ? name : "${substr(name, 0, 55)}-${substr(sha1(name), 0, 8)}" }
}

resource "aws_iam_role" "server" {
  for_each             = var.shards
  name                 = local.server_names[each.key]
  path                 = var.path
  description          = "Servers of the Nstance shard ${var.cluster.id}/${each.key}."
  assume_role_policy   = jsonencode(local.trust_policy)
  permissions_boundary = var.permissions_boundary
  tags                 = merge(local.tags, { "nstance:shard" = each.key })
}

resource "aws_iam_role_policy" "server" {
  for_each = var.shards
  name     = "nstance-server"
  role     = aws_iam_role.server[each.key].name
  policy   = local.server_policies[each.key]
}

resource "aws_iam_instance_profile" "server" {
  for_each = var.shards
  name     = local.server_names[each.key]
  path     = var.path
  role     = aws_iam_role.server[each.key].name
  tags     = merge(local.tags, { "nstance:shard" = each.key })
}

# No policy is attached to this role, because agents need no permissions in AWS. Policies for other programs on the VMs
# can be attached outside this module.
resource "aws_iam_role" "agent" {
  name                 = "${local.name}-nstance-agent"
  path                 = var.path
  description          = "VMs that the Nstance cluster ${var.cluster.id} starts."
  assume_role_policy   = jsonencode(local.trust_policy)
  permissions_boundary = var.permissions_boundary
  tags                 = local.tags
}

resource "aws_iam_instance_profile" "agent" {
  name = "${local.name}-nstance-agent"
  path = var.path
  role = aws_iam_role.agent.name
  tags = local.tags
}
