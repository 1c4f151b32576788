# In the partition aws-cn, ARNs and services have other names.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_region" {
    defaults = { id = "cn-north-1" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws-cn", dns_suffix = "amazonaws.com.cn" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws-cn:iam::123456789012:role/mocked" }
  }
}

variables {
  shards               = { one = { pass_role_arns = ["arn:aws-cn:iam::123456789012:role/web"] } }
  target_group_arns    = { web = "arn:aws-cn:elasticloadbalancing:cn-north-1:123456789012:targetgroup/web/0123456789abcdef" }
  load_balancer_health = true
  server_ssm           = true
  ebs_kms_key_arns     = ["arn:aws-cn:kms:cn-north-1:123456789012:key/00000000-0000-0000-0000-000000000000"]
  launch_resource_arns = ["arn:aws-cn:ec2:cn-north-1:123456789012:launch-template/lt-0a"]
  image_owners         = ["amazon"]
  security_group_ids   = ["sg-0a"]
  cluster = {
    id             = "example"
    bucket_arn     = "arn:aws-cn:s3:::example"
    kms_key_arn    = "arn:aws-cn:kms:cn-north-1:123456789012:key/00000000-0000-0000-0000-000000000000"
    encryption_key = { provider = "aws-secrets-manager", arn = "arn:aws-cn:secretsmanager:cn-north-1:123456789012:secret:key-AbCdEf" }
  }
}

run "key" {
  assert {
    condition     = !strcontains(output.server_policies["one"], "arn:aws:")
    error_message = "the policy names resources of another partition: ${output.server_policies["one"]}"
  }
  assert {
    condition     = toset([for s in jsondecode(output.server_policies["one"]).Statement : s.Condition.StringEquals["iam:PassedToService"] if s.Sid == "PassAgentRole"][0]) == toset(["ec2.amazonaws.com", "ec2.amazonaws.com.cn"])
    error_message = "the servers cannot pass roles to EC2 in China"
  }
}

run "secrets" {
  variables {
    cluster = {
      id         = "example"
      bucket_arn = "arn:aws-cn:s3:::example"
      secrets    = { provider = "aws-parameter-store", prefix = "/nstance/example/" }
    }
  }

  assert {
    condition     = !strcontains(output.server_policies["one"], "arn:aws:")
    error_message = "the policy names resources of another partition: ${output.server_policies["one"]}"
  }
}
