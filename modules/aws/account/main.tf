# IAM roles of the cluster: one role for the servers of all shards, and one without permissions for the VMs that they
# start.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  partition      = data.aws_partition.current.partition
  region         = data.aws_region.current.id
  account_id     = data.aws_caller_identity.current.account_id
  name           = coalesce(var.name, var.cluster.id)
  tags           = merge({ "nstance:cluster" = var.cluster.id }, var.tags)
  agent_role_arn = aws_iam_role.agent.arn
}

resource "aws_iam_role" "server" {
  name                 = "${local.name}-nstance-server"
  path                 = var.path
  description          = "Servers of the Nstance cluster ${var.cluster.id}."
  assume_role_policy   = jsonencode(local.trust_policy)
  permissions_boundary = var.permissions_boundary
  tags                 = local.tags
}

resource "aws_iam_role_policy" "server" {
  name   = "nstance-server"
  role   = aws_iam_role.server.name
  policy = local.server_policy
}

resource "aws_iam_instance_profile" "server" {
  name = "${local.name}-nstance-server"
  path = var.path
  role = aws_iam_role.server.name
  tags = local.tags
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
