# These tests run under OpenTofu only, because Terraform's mocks do not support ephemeral resources.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_availability_zones" {
    defaults = { names = ["us-west-2a", "us-west-2b", "us-west-2c", "us-west-2d", "us-west-2e", "us-west-2f"] }
  }
  mock_data "aws_region" {
    defaults = { id = "us-west-2" }
  }
  mock_data "aws_ami_ids" {
    defaults = { ids = ["ami-0000000000000000a"] }
  }
  mock_data "aws_ec2_instance_type_offerings" {
    defaults = { instance_types = ["t3.nano", "t3.small", "t3.medium", "t4g.nano", "t4g.small", "t4g.medium"] }
  }
  mock_data "aws_ec2_instance_types" {
    defaults = { instance_types = ["t3.nano", "t3.small", "t3.medium", "t4g.nano", "t4g.small", "t4g.medium"] }
  }
  mock_data "aws_ami" {
    defaults = { id = "ami-0000000000000000a", root_device_name = "/dev/xvda" }
  }
  mock_data "aws_subnet" {
    defaults = { cidr_block = "10.0.8.0/24" }
  }
  mock_resource "aws_vpc" {
    defaults = { id = "vpc-0000000000000000a" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/example" }
  }
  mock_resource "aws_lb" {
    defaults = { arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:loadbalancer/net/web/0123456789abcdef" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/web/0123456789abcdef" }
  }
  mock_resource "aws_network_interface" {
    defaults = { id = "eni-0000000000000000a", private_ip = "10.0.8.100" }
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
    defaults = { content = "#!/bin/sh\n", content_base64 = "IyEvYmluL3NoCg==" }
  }
}

run "all_zones" {
  command = plan

  assert {
    condition     = { for zone, list in local.subnets.servers : zone => list[0].ipv4_cidr } == { us-west-2a = "10.0.8.0/24", us-west-2b = "10.0.9.0/24", us-west-2c = "10.0.10.0/24" }
    error_message = "the servers' subnets are ${jsonencode(local.subnets.servers)}"
  }
  assert {
    condition     = alltrue([for list in values(local.subnets.public) : list[0].nat_gateway])
    error_message = "not every zone has a NAT gateway, so that a zone that fails takes others with it"
  }
}

# Removing a zone changes nothing in the other zones.
run "without_the_first_zone" {
  command = plan

  variables {
    zones = { us-west-2b = 1, us-west-2c = 2 }
    nat   = "one"
  }

  assert {
    condition     = { for zone, list in local.subnets.servers : zone => list[0].ipv4_cidr } == { us-west-2b = "10.0.9.0/24", us-west-2c = "10.0.10.0/24" }
    error_message = "the servers' subnets are ${jsonencode(local.subnets.servers)}"
  }
  assert {
    condition     = { for zone, list in local.subnets.web : zone => list[0].ipv4_cidr } == { us-west-2b = "10.0.32.0/20", us-west-2c = "10.0.48.0/20" }
    error_message = "the VMs' subnets are ${jsonencode(local.subnets.web)}"
  }
  assert {
    condition     = { for zone, list in local.subnets.public : zone => list[0].nat_gateway } == { us-west-2b = true, us-west-2c = false }
    error_message = "the one NAT gateway is not in the zone with the lowest index"
  }
}

run "bad_zones" {
  command = plan

  variables {
    zones = { us-west-2a = 1, us-west-2b = 1 }
  }

  expect_failures = [var.zones]
}
