# In the partition aws-cn, the names of some endpoint services have another prefix.

mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["cn-north-1a"] }
  }
  mock_data "aws_region" {
    defaults = { id = "cn-north-1" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws-cn" }
  }
  mock_resource "aws_vpc" {
    defaults = { id = "vpc-0000000000000000b" }
  }
}

run "endpoints" {
  variables {
    name      = "example"
    subnets   = { servers = { cn-north-1a = [{ ipv4_cidr = "10.0.2.0/24" }] } }
    nat_mode  = "none"
    endpoints = { interface = ["ec2", "secretsmanager", "cn.com.amazonaws.cn-north-1.other"], subnets = "servers" }
  }

  assert {
    condition = merge({ for key, e in aws_vpc_endpoint.interface : key => e.service_name }, { s3 = aws_vpc_endpoint.s3[0].service_name }) == {
      s3                                  = "com.amazonaws.cn-north-1.s3"
      ec2                                 = "cn.com.amazonaws.cn-north-1.ec2"
      secretsmanager                      = "com.amazonaws.cn-north-1.secretsmanager"
      "cn.com.amazonaws.cn-north-1.other" = "cn.com.amazonaws.cn-north-1.other"
    }
    error_message = "the services have other names: ${jsonencode({ for key, e in aws_vpc_endpoint.interface : key => e.service_name })}"
  }
}
