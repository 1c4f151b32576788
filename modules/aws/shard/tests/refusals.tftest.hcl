# Each validation, by itself.

mock_provider "aws" {
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
  account = { server_instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/a", agent_instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/b" }
  network = {
    vpc_id    = "vpc-0000000000000000a"
    ipv4_cidr = "10.0.0.0/16"
    subnets   = { servers = { us-west-2a = [{ id = "subnet-0a" }] }, mine = { us-west-2a = [{ id = "subnet-1a", shards = ["one"] }] } }
  }
  shard = "one"
  zone  = "us-west-2a"
}

run "shard_name" {
  command = plan

  variables {
    shard = "One"
  }

  expect_failures = [var.shard]
}

run "zone" {
  command = plan

  variables {
    zone    = "us-west-2"
    network = { vpc_id = "vpc-0000000000000000a", ipv4_cidr = "10.0.0.0/16", subnets = { servers = { us-west-2 = [{ id = "subnet-0a" }] } } }
  }

  expect_failures = [var.zone]
}

run "server_count" {
  command = plan

  variables {
    server_count = 3
  }

  expect_failures = [var.server_count]
}

run "server_instance_type" {
  command = plan

  variables {
    server_instance_type = "nano"
  }

  expect_failures = [var.server_instance_type]
}

run "server_arch" {
  command = plan

  variables {
    server_arch = "x86_64"
  }

  expect_failures = [var.server_arch]
}

run "server_image" {
  command = plan

  variables {
    server_image = { id = "debian" }
  }

  expect_failures = [var.server_image]
}

run "server_subnets" {
  command = plan

  variables {
    server_subnets = "public"
  }

  expect_failures = [var.server_subnets]
}

run "server_subnets_of_another_shard" {
  command = plan

  variables {
    shard          = "two"
    server_subnets = "mine"
  }

  expect_failures = [var.server_subnets]
}

run "leader_ipv4" {
  command = plan

  variables {
    leader_network = { ipv4 = "10.0.0.0/24" }
  }

  expect_failures = [var.leader_network]
}

run "leader_ipv6_without_ipv6" {
  command = plan

  variables {
    leader_network = { ipv6 = "2001:db8::1" }
  }

  expect_failures = [var.leader_network]
}

run "health_type" {
  command = plan

  variables {
    health_check = { type = "HTTP" }
  }

  expect_failures = [var.health_check]
}

run "health_without_balancer" {
  command = plan

  variables {
    health_check = { type = "ELB" }
  }

  expect_failures = [var.health_check]
}

run "health_port" {
  command = plan

  variables {
    health_check = { listener_port = 0 }
  }

  expect_failures = [var.health_check]
}

run "destroy_timeout" {
  command = plan

  variables {
    destroy_timeout = "15"
  }

  expect_failures = [var.destroy_timeout]
}

run "subnet_pools" {
  command = plan

  variables {
    subnet_pools = ["web"]
  }

  expect_failures = [var.subnet_pools]
}

run "tenants" {
  command = plan

  variables {
    tenants = ["default"]
  }

  expect_failures = [var.tenants]
}

run "images" {
  command = plan

  variables {
    images = { "debian-13" = {} }
  }

  expect_failures = [var.images]
}

run "default_args" {
  command = plan

  variables {
    defaults = { args_json = "[]" }
  }

  expect_failures = [var.defaults]
}

run "template_args" {
  command = plan

  variables {
    templates = { a = { kind = "aaa", arch = "arm64", args_json = "{" } }
  }

  expect_failures = [var.templates]
}

run "group_name" {
  command = plan

  variables {
    groups = { workers = { template = "a" } }
  }

  expect_failures = [var.groups]
}

run "group_args" {
  command = plan

  variables {
    groups = { "default/workers" = { template = "a", args_json = "1" } }
  }

  expect_failures = [var.groups]
}

run "group_balancers" {
  command = plan

  variables {
    groups = { "default/workers" = { template = "a", load_balancers = ["web"] } }
  }

  expect_failures = [var.groups]
}

run "agent_ingress" {
  command = plan

  variables {
    agent_ingress = { a = { protocol = "tcp" } }
  }

  expect_failures = [var.agent_ingress]
}

run "agent_ingress_name" {
  command = plan

  variables {
    agent_ingress = { "the shard's" = { protocol = "-1", self = true } }
  }

  expect_failures = [var.agent_ingress]
}
