# tests/modules tests what the policies allow, with a policy evaluator.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_region" {
    defaults = { id = "us-west-2" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws", dns_suffix = "amazonaws.com" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
  }
}

variables {
  cluster = {
    id             = "example"
    bucket_arn     = "arn:aws:s3:::example"
    encryption_key = { provider = "aws-secrets-manager", arn = "arn:aws:secretsmanager:us-west-2:123456789012:secret:nstance/example/encryption-key-AbCdEf" }
  }
  shards = { one = {}, two = {} }
}

run "defaults" {
  assert {
    condition     = { for shard, role in aws_iam_role.server : shard => role.name } == { one = "example-nstance-server-one", two = "example-nstance-server-two" } && aws_iam_role.agent.name == "example-nstance-agent" && aws_iam_role.server["one"].path == "/"
    error_message = "the roles have other names"
  }
  assert {
    condition     = alltrue([for shard, profile in aws_iam_instance_profile.server : profile.role == aws_iam_role.server[shard].name && profile.tags["nstance:shard"] == shard]) && aws_iam_instance_profile.agent.role == aws_iam_role.agent.name
    error_message = "a profile has another role"
  }
  assert {
    condition     = alltrue([for shard, policy in aws_iam_role_policy.server : policy.role == aws_iam_role.server[shard].name && policy.policy == output.server_policies[shard]])
    error_message = "a role of servers has the policy of another"
  }
  assert {
    condition     = [for s in jsondecode(aws_iam_role.agent.assume_role_policy).Statement : s.Principal.Service] == ["ec2.amazonaws.com"]
    error_message = "other principals than EC2 may assume the agents' role"
  }
  assert {
    condition     = !contains([for s in jsondecode(output.server_policies["one"]).Statement : s.Sid], "RegisterTargets") && !contains([for s in jsondecode(output.server_policies["one"]).Statement : s.Sid], "UseKMSKey")
    error_message = "the servers have permissions that no variable grants"
  }
  assert {
    condition     = [for s in jsondecode(output.server_policies["one"]).Statement : s.Action if s.Sid == "ReadEncryptionKey"] == ["secretsmanager:GetSecretValue"]
    error_message = "the servers cannot read the key"
  }
}

run "choices" {
  variables {
    cluster = {
      id             = "example"
      bucket_arn     = "arn:aws:s3:::shared"
      prefix         = "clusters/example"
      kms_key_arn    = "arn:aws:kms:us-west-2:123456789012:key/00000000-0000-0000-0000-000000000000"
      encryption_key = { provider = "aws-parameter-store", arn = "arn:aws:ssm:us-west-2:123456789012:parameter/nstance/example/encryption-key" }
    }
    name                 = "mine"
    path                 = "/nstance/"
    permissions_boundary = "arn:aws:iam::123456789012:policy/boundary"
    vpc_id               = "vpc-0000000000000000a"
    target_group_arns    = { "web/http" = "arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/web/0123456789abcdef" }
    tags                 = { team = "a" }
    load_balancer_health = true
  }

  assert {
    condition     = [for s in jsondecode(output.server_policies["one"]).Statement : length(setintersection(s.Action, ["elasticloadbalancing:DescribeTargetGroupAttributes", "elasticloadbalancing:DescribeTargetHealth"])) if s.Sid == "Describe"] == [2]
    error_message = "the servers cannot read the attributes of target groups, or the health of targets"
  }
  assert {
    condition     = aws_iam_role.server["one"].name == "mine-nstance-server-one" && aws_iam_role.server["one"].path == "/nstance/" && aws_iam_role.agent.permissions_boundary == var.permissions_boundary && aws_iam_role.server["one"].permissions_boundary == var.permissions_boundary
    error_message = "roles are not as asked for"
  }
  assert {
    condition     = { for s in jsondecode(output.server_policies["one"]).Statement : s.Sid => s.Resource if contains(["UseKMSKey", "RegisterTargets"], s.Sid) } == { UseKMSKey = var.cluster.kms_key_arn, RegisterTargets = [var.target_group_arns["web/http"]] }
    error_message = "the servers lack rights"
  }
  assert {
    condition     = alltrue(flatten([for s in jsondecode(output.server_policies["one"]).Statement : [for r in flatten([s.Resource]) : startswith(r, "arn:aws:s3:::shared/clusters/example/") || r == "arn:aws:s3:::shared" if startswith(r, "arn:aws:s3")]]))
    error_message = "the servers have permissions on other clusters' objects"
  }
  assert {
    condition     = aws_iam_role.server["one"].tags == tomap({ "nstance:cluster" = "example", "nstance:shard" = "one", team = "a" }) && aws_iam_role.agent.tags["team"] == "a"
    error_message = "tags are missing"
  }
}

run "long_names" {
  variables {
    name   = "example-of-a-cluster-with-a-long-name"
    shards = { "a-shard-with-a-long-name-1" = {}, "a-shard-with-a-long-name-2" = {} }
  }

  assert {
    condition     = alltrue([for role in aws_iam_role.server : length(role.name) == 64]) && length(distinct([for role in aws_iam_role.server : role.name])) == 2
    error_message = "long names of roles are not cut, or are equal"
  }
}

run "bad_values" {
  command = plan

  variables {
    cluster = {
      id             = "example"
      bucket_arn     = "arn:aws:s3:::example"
      encryption_key = { provider = "env", arn = "KEY" }
    }
    name   = "a/b"
    vpc_id = "my-vpc"
    path   = "nstance"
    shards = { "a--b" = {} }

    ebs_kms_key_arns     = ["alias/disks"]
    launch_resource_arns = ["arn:aws:ec2:us-west-2:123456789012:launch-template/*"]
  }

  expect_failures = [var.cluster, var.name, var.vpc_id, var.path, var.shards, var.ebs_kms_key_arns, var.launch_resource_arns]
}

run "bad_secret" {
  command = plan

  variables {
    shards = { one = { secrets = ["a/b"] } }
  }

  expect_failures = [var.shards]
}

run "bad_role" {
  command = plan

  variables {
    shards = { one = { pass_role_arns = ["arn:aws:iam::123456789012:role/*"] } }
  }

  expect_failures = [var.shards]
}

run "no_key" {
  command = plan

  variables {
    cluster = { id = "example", bucket_arn = "arn:aws:s3:::example" }
  }

  expect_failures = [var.cluster]
}

run "no_secrets_prefix" {
  command = plan

  variables {
    cluster = { id = "example", bucket_arn = "arn:aws:s3:::example", secrets = { provider = "aws-secrets-manager", prefix = "" } }
  }

  expect_failures = [var.cluster]
}
