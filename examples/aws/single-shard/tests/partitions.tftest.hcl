# The examples in China and in GovCloud, where ARNs and services have other names. These tests run under OpenTofu only.

mock_provider "aws" {
  alias = "china"

  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_availability_zones" {
    defaults = { names = ["cn-north-1a", "cn-north-1b", "cn-north-1c"] }
  }
  mock_data "aws_region" {
    defaults = { id = "cn-north-1" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws-cn", dns_suffix = "amazonaws.com.cn" }
  }
  mock_data "aws_ami_ids" {
    defaults = { ids = ["ami-0000000000000000a"] }
  }
  mock_data "aws_ec2_instance_type_offerings" {
    defaults = { instance_types = ["t4g.nano", "t4g.small", "t4g.medium"] }
  }
  mock_data "aws_ec2_instance_types" {
    defaults = { instance_types = ["t4g.nano", "t4g.small", "t4g.medium"] }
  }
  mock_data "aws_ami" {
    defaults = { id = "ami-0000000000000000a", root_device_name = "/dev/xvda" }
  }
  mock_data "aws_subnet" {
    defaults = { cidr_block = "10.0.1.0/24" }
  }
  mock_resource "aws_vpc" {
    defaults = { id = "vpc-0000000000000000a" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws-cn:iam::123456789012:role/example" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws-cn:iam::123456789012:instance-profile/example" }
  }
  mock_resource "aws_lb" {
    defaults = { arn = "arn:aws-cn:elasticloadbalancing:cn-north-1:123456789012:loadbalancer/net/web/0123456789abcdef" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws-cn:elasticloadbalancing:cn-north-1:123456789012:targetgroup/web/0123456789abcdef" }
  }
  mock_resource "aws_network_interface" {
    defaults = { id = "eni-0000000000000000a", mac_address = "02:00:00:ab:cd:ef", private_ip = "10.0.1.100" }
  }
  mock_resource "aws_security_group" {
    defaults = { id = "sg-0000000000000000a" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0000000000000000a", latest_version = 1 }
  }
}

mock_provider "aws" {
  alias = "govcloud"

  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_availability_zones" {
    defaults = { names = ["us-gov-west-1a", "us-gov-west-1b", "us-gov-west-1c"] }
  }
  mock_data "aws_region" {
    defaults = { id = "us-gov-west-1" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws-us-gov", dns_suffix = "amazonaws.com" }
  }
  mock_data "aws_ami_ids" {
    defaults = { ids = ["ami-0000000000000000a"] }
  }
  mock_data "aws_ec2_instance_type_offerings" {
    defaults = { instance_types = ["t4g.nano", "t4g.small", "t4g.medium"] }
  }
  mock_data "aws_ec2_instance_types" {
    defaults = { instance_types = ["t4g.nano", "t4g.small", "t4g.medium"] }
  }
  mock_data "aws_ami" {
    defaults = { id = "ami-0000000000000000a", root_device_name = "/dev/xvda" }
  }
  mock_data "aws_subnet" {
    defaults = { cidr_block = "10.0.1.0/24" }
  }
  mock_resource "aws_vpc" {
    defaults = { id = "vpc-0000000000000000a" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws-us-gov:iam::123456789012:role/example" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws-us-gov:iam::123456789012:instance-profile/example" }
  }
  mock_resource "aws_lb" {
    defaults = { arn = "arn:aws-us-gov:elasticloadbalancing:us-gov-west-1:123456789012:loadbalancer/net/web/0123456789abcdef" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws-us-gov:elasticloadbalancing:us-gov-west-1:123456789012:targetgroup/web/0123456789abcdef" }
  }
  mock_resource "aws_network_interface" {
    defaults = { id = "eni-0000000000000000a", mac_address = "02:00:00:ab:cd:ef", private_ip = "10.0.1.100" }
  }
  mock_resource "aws_security_group" {
    defaults = { id = "sg-0000000000000000a" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0000000000000000a", latest_version = 1 }
  }
}

mock_provider "nstance" {
  mock_data "nstance_userdata" {
    defaults = { content = "#!/bin/sh\n# {{ .Nonce }}\n", content_base64 = "IyEvYmluL3NoCg==" }
  }
}

run "china" {
  providers = { aws = aws.china, nstance = nstance }

  override_module {
    target = module.cluster
    outputs = {
      cluster = {
        id             = "example"
        bucket         = "example"
        bucket_arn     = "arn:aws-cn:s3:::example"
        region         = "cn-north-1"
        prefix         = ""
        kms_key_arn    = null
        encryption_key = { provider = "aws-parameter-store", source = "/nstance/example/encryption-key", arn = "arn:aws-cn:ssm:cn-north-1:123456789012:parameter/nstance/example/encryption-key" }
        secrets        = { provider = "object-storage", prefix = "" }
      }
      encryption_key     = { provider = "aws-parameter-store", source = "/nstance/example/encryption-key" }
      storage            = { provider = "s3", bucket = "example", region = "cn-north-1", prefix = "" }
      ca_certificate_pem = "certificate"
    }
  }

  variables {
    region = "cn-north-1"
    zone   = "cn-north-1a"
  }

  assert {
    condition     = length(module.account.server_policies) == 1 && alltrue([for policy in values(module.account.server_policies) : !strcontains(policy, "arn:aws:") && strcontains(policy, "arn:aws-cn:ec2:cn-north-1:123456789012:")])
    error_message = "the policies name resources of another partition: ${jsonencode(module.account.server_policies)}"
  }
  assert {
    condition     = alltrue([for policy in values(module.account.server_policies) : contains(flatten([for s in jsondecode(policy).Statement : s.Condition.StringEquals["iam:PassedToService"] if s.Sid == "PassAgentRole"]), "ec2.amazonaws.com.cn")])
    error_message = "the servers cannot pass roles to EC2: ${jsonencode(module.account.server_policies)}"
  }
  assert {
    condition     = !strcontains(jsonencode([module.network.network, module.account.account, module.shard]), "arn:aws:")
    error_message = "outputs name resources of another partition: ${jsonencode([module.network.network, module.account.account, module.shard])}"
  }
}

run "govcloud" {
  providers = { aws = aws.govcloud, nstance = nstance }

  override_module {
    target = module.cluster
    outputs = {
      cluster = {
        id             = "example"
        bucket         = "example"
        bucket_arn     = "arn:aws-us-gov:s3:::example"
        region         = "us-gov-west-1"
        prefix         = ""
        kms_key_arn    = null
        encryption_key = { provider = "aws-parameter-store", source = "/nstance/example/encryption-key", arn = "arn:aws-us-gov:ssm:us-gov-west-1:123456789012:parameter/nstance/example/encryption-key" }
        secrets        = { provider = "object-storage", prefix = "" }
      }
      encryption_key     = { provider = "aws-parameter-store", source = "/nstance/example/encryption-key" }
      storage            = { provider = "s3", bucket = "example", region = "us-gov-west-1", prefix = "" }
      ca_certificate_pem = "certificate"
    }
  }

  variables {
    region = "us-gov-west-1"
    zone   = "us-gov-west-1a"
  }

  assert {
    condition     = length(module.account.server_policies) == 1 && alltrue([for policy in values(module.account.server_policies) : !strcontains(policy, "arn:aws:") && strcontains(policy, "arn:aws-us-gov:ec2:us-gov-west-1:123456789012:")])
    error_message = "the policies name resources of another partition: ${jsonencode(module.account.server_policies)}"
  }
  assert {
    condition     = alltrue([for policy in values(module.account.server_policies) : contains(flatten([for s in jsondecode(policy).Statement : s.Condition.StringEquals["iam:PassedToService"] if s.Sid == "PassAgentRole"]), "ec2.amazonaws.com")])
    error_message = "the servers cannot pass roles to EC2: ${jsonencode(module.account.server_policies)}"
  }
  assert {
    condition     = !strcontains(jsonencode([module.network.network, module.account.account, module.shard]), "arn:aws:")
    error_message = "outputs name resources of another partition: ${jsonencode([module.network.network, module.account.account, module.shard])}"
  }
}
