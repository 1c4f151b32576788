# An existing VPC with existing subnets.

mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["us-west-2a", "us-west-2b", "us-west-2c", "us-west-2d", "us-west-2e", "us-west-2f"] }
  }
  mock_data "aws_region" {
    defaults = { id = "us-west-2" }
  }
  mock_data "aws_vpc" {
    defaults = { cidr_block = "172.16.0.0/16", cidr_block_associations = [{ cidr_block = "172.16.0.0/16" }, { cidr_block = "10.9.0.0/16" }], ipv6_cidr_block = "" }
  }
  mock_data "aws_subnet" {
    defaults = { availability_zone = "us-west-2a", vpc_id = "vpc-0000000000000000a" }
  }
}

variables {
  name = "example"
  vpc  = { existing = "vpc-0000000000000000a", internet_gateway = "igw-0000000000000000a" }
}

run "existing" {
  variables {
    subnets = {
      public  = { us-west-2a = [{ ipv4_cidr = "172.16.0.0/24", public = true }] }
      workers = { us-west-2a = [{ existing = "subnet-0000000000000000a" }] }
      second  = { us-west-2a = [{ ipv4_cidr = "10.9.1.0/24", public = true }] }
    }
  }

  assert {
    condition     = length(aws_vpc.this) == 0 && length(aws_internet_gateway.this) == 0 && aws_route.public_ipv4[0].gateway_id == "igw-0000000000000000a"
    error_message = "existing resources are created again"
  }
  assert {
    condition     = keys(aws_subnet.this) == ["public/us-west-2a/0", "second/us-west-2a/0"] && aws_subnet.this["public/us-west-2a/0"].vpc_id == "vpc-0000000000000000a" && length(aws_route_table.private) == 0
    error_message = "existing subnets are changed"
  }
  assert {
    condition     = output.network.ipv4_cidr == "172.16.0.0/16" && output.vpc_id == "vpc-0000000000000000a"
    error_message = "the output has another VPC"
  }
}

run "subnet_in_another_zone" {
  command = plan

  variables {
    subnets = { workers = { us-west-2b = [{ existing = "subnet-0000000000000000a" }] } }
  }

  expect_failures = [data.aws_subnet.existing]
}

run "subnet_in_another_vpc" {
  command = plan

  variables {
    vpc     = { existing = "vpc-0000000000000000c" }
    subnets = { workers = { us-west-2a = [{ existing = "subnet-0000000000000000a" }] } }
  }

  expect_failures = [data.aws_subnet.existing]
}

run "vpc_without_ipv6" {
  command = plan

  variables {
    ip_family = "dualstack"
    subnets   = { workers = { us-west-2a = [{ existing = "subnet-0000000000000000a" }] } }
  }

  expect_failures = [data.aws_vpc.existing]
}
