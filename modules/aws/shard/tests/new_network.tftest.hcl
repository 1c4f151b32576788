# The plan must know everything that depends on the settings of a subnet, even if the subnet does not exist yet.

mock_provider "aws" {
  mock_data "aws_ami_ids" {
    defaults = { ids = ["ami-0000000000000000a"] }
  }
  mock_data "aws_ec2_instance_type_offerings" {
    defaults = { instance_types = ["t4g.nano"] }
  }
  mock_data "aws_ec2_instance_types" {
    defaults = { instance_types = ["t4g.nano"] }
  }
  mock_data "aws_subnet" {
    defaults = { cidr_block = "10.0.1.0/24" }
  }
  mock_resource "aws_network_interface" {
    defaults = { id = "eni-0000000000000000a", private_ip = "10.0.1.100" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0000000000000000a", latest_version = 1 }
  }
}
mock_provider "nstance" {}

run "leader_dns_in_one_apply" {
  command = plan

  module {
    source = "./tests/new-network"
  }

  assert {
    condition     = output.subnet_pools == ["servers"]
    error_message = "the subnet pools are not known at plan"
  }
}
