# Every validation fails in one of these runs. Each run covers several variables, with one validation of each.

mock_provider "aws" {
  mock_data "aws_ami_ids" {
    defaults = { ids = ["ami-0000000000000000a"] }
  }
  mock_data "aws_ec2_instance_type_offerings" {
    defaults = { instance_types = ["t3.nano", "t3.small", "t3.medium", "t4g.nano", "t4g.small", "t4g.medium"] }
  }
  mock_data "aws_ec2_instance_types" {
    defaults = { instance_types = ["t3.nano", "t3.small", "t3.medium", "t4g.nano", "t4g.small", "t4g.medium"] }
  }
  mock_data "aws_subnet" {
    defaults = { cidr_block = "10.0.1.0/24" }
  }
  mock_resource "aws_network_interface" {
    defaults = { id = "eni-0000000000000000a", mac_address = "02:00:00:ab:cd:ef", private_ip = "10.0.1.100" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0000000000000000a", latest_version = 1 }
  }
}
mock_provider "nstance" {}

variables {
  cluster = {
    id             = "example"
    bucket         = "example-bucket"
    region         = "us-west-2"
    encryption_key = { provider = "aws-secrets-manager", source = "arn" }
  }
  account = { servers = { for shard in ["one", "two"] : shard => { instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/a" } }, agent_instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/b" }
  network = {
    vpc_id    = "vpc-0000000000000000a"
    ipv4_cidr = "10.0.0.0/16"
    subnets   = { servers = { us-west-2a = [{ id = "subnet-0a" }] }, mine = { us-west-2a = [{ id = "subnet-1a", shards = ["one"] }] } }
  }
  shard = "one"
  zone  = "us-west-2a"
}

run "one" {
  command = plan

  variables {
    shard                = "One"
    server_count         = 3
    server_instance_type = "nano"
    server_arch          = "x86_64"
    server_image         = { id = "debian" }
    leader_network       = { ipv4 = "10.0.0.0/24" }
    health_check         = { type = "HTTP" }
    destroy_timeout      = "15"
    config               = "{}"
    agent_ingress        = { a = { protocol = "tcp" } }
  }

  expect_failures = [var.shard, var.server_count, var.server_instance_type, var.server_arch, var.server_image, var.leader_network, var.health_check, var.destroy_timeout, var.config, var.agent_ingress]
}

run "two" {
  command = plan

  variables {
    leader_network = { ipv6 = "2001:db8::1" }
    health_check   = { type = "ELB" }
    config         = { server = { leader_network = { ipv4 = "10.0.1.5" } } }
    agent_ingress  = { "the shard's" = { protocol = "-1", self = true } }
    server_subnets = "public"
    subnet_pools   = ["web"]
  }

  expect_failures = [var.leader_network, var.health_check, var.config, var.agent_ingress, var.server_subnets, var.subnet_pools]
}

run "three" {
  command = plan

  variables {
    shard          = "two"
    health_check   = { listener_port = 0 }
    server_subnets = "mine"
    config         = { server = { provider = { zone = "us-west-2b" } } }
  }

  expect_failures = [var.health_check, var.server_subnets, var.config]
}

run "zone" {
  command = plan

  variables {
    zone    = "us-west-2"
    config  = { cluster = { id = "other" } }
    network = { vpc_id = "vpc-0000000000000000a", ipv4_cidr = "10.0.0.0/16", subnets = { servers = { us-west-2 = [{ id = "subnet-0a" }] } } }
  }

  expect_failures = [var.zone, var.config]
}

run "no_role" {
  command = plan

  variables {
    account = { servers = { other = { instance_profile_arn = "arn" } }, agent_instance_profile_arn = "arn" }
  }

  expect_failures = [var.account]
}

run "fractions" {
  command = plan

  variables {
    config       = { server = { shard = "one" } }
    health_check = { grace_period = 1.5 }
    leader_dns   = { zone_id = "Z0", name = "Leader", ttl = 1.5 }
  }

  expect_failures = [var.config, var.health_check, var.leader_dns]
}

run "leader_address_outside_its_subnet" {
  command = plan

  variables {
    leader_network = { ipv4 = "10.0.2.100" }
  }

  expect_failures = [aws_network_interface.leader]
}

run "leader_address_of_the_router" {
  command = plan

  variables {
    leader_network = { ipv4 = "10.0.1.3" }
  }

  expect_failures = [aws_network_interface.leader]
}

run "leader_address_for_broadcast" {
  command = plan

  variables {
    leader_network = { ipv4 = "10.0.1.255" }
  }

  expect_failures = [aws_network_interface.leader]
}

run "no_such_instance_type" {
  command = plan

  variables {
    server_instance_type = "t9.nano"
  }

  expect_failures = [data.aws_ec2_instance_type_offerings.zone, data.aws_ec2_instance_types.arch]
}

run "no_such_image" {
  command = plan

  variables {
    config = { images = { debian = { provider = "aws", owners = ["self"], filters = [{ name = "name", values = ["debian-*"] }] } } }
  }

  override_data {
    target = data.aws_ami_ids.agent
    values = { ids = [] }
  }

  expect_failures = [data.aws_ami_ids.agent]
}

run "no_such_server_image" {
  command = plan

  override_data {
    target = data.aws_ami_ids.server
    values = { ids = [] }
  }

  expect_failures = [data.aws_ami_ids.server]
}

run "server_of_another_architecture" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_types.arch
    values = { instance_types = ["t3.nano"] }
  }

  expect_failures = [data.aws_ec2_instance_types.arch]
}
