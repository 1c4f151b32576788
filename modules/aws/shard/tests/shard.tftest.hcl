mock_provider "aws" {
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
    defaults = { cidr_block = "10.0.1.0/24" }
  }
  mock_resource "aws_network_interface" {
    defaults = { id = "eni-0000000000000000a", mac_address = "02:00:00:ab:cd:ef", private_ip = "10.0.1.100", ipv6_addresses = ["2001:db8::100"] }
  }
  mock_resource "aws_security_group" {
    defaults = { id = "sg-0000000000000000a" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0000000000000000a", latest_version = 1 }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/health/0123456789abcdef" }
  }
}

mock_provider "nstance" {
  mock_data "nstance_userdata" {
    defaults = { content = "#!/bin/sh\n", content_base64 = "IyEvYmluL3NoCg==" }
  }
}

variables {
  cluster = {
    id             = "example"
    bucket         = "example-bucket"
    region         = "us-west-2"
    encryption_key = { provider = "aws-secrets-manager", source = "arn:aws:secretsmanager:us-west-2:123456789012:secret:nstance/example/encryption-key-AbCdEf" }
  }
  account = {
    servers                    = { one = { instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/example-nstance-server-one" } }
    agent_instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/example-nstance-agent"
  }
  network = {
    vpc_id    = "vpc-0000000000000000a"
    ipv4_cidr = "10.0.0.0/16"
    subnets = {
      servers = { us-west-2a = [{ id = "subnet-0a" }], us-west-2b = [{ id = "subnet-0b" }] }
      workers = { us-west-2a = [{ id = "subnet-1a" }, { id = "subnet-2a", shards = ["other"] }, { id = "subnet-3a", shards = ["one"] }] }
      far     = { us-west-2b = [{ id = "subnet-1b" }] }
    }
  }
  shard = "one"
  zone  = "us-west-2a"
}

run "defaults" {
  assert {
    condition     = aws_autoscaling_group.server.min_size == 1 && aws_autoscaling_group.server.max_size == 1 && aws_autoscaling_group.server.desired_capacity == 1
    error_message = "the number of servers is not 1"
  }
  assert {
    condition     = aws_autoscaling_group.server.vpc_zone_identifier == toset(["subnet-0a"]) && aws_autoscaling_group.server.health_check_type == "EC2" && aws_autoscaling_group.server.wait_for_capacity_timeout == "0"
    error_message = "the auto-scaling group differs from the expected one"
  }
  assert {
    condition     = one(aws_launch_template.server.metadata_options).http_tokens == "required" && one(aws_launch_template.server.iam_instance_profile).arn == var.account.servers.one.instance_profile_arn
    error_message = "servers have IMDSv1, or another role"
  }
  assert {
    condition     = one(one(aws_launch_template.server.block_device_mappings).ebs).encrypted == "true" && aws_launch_template.server.image_id == "ami-0000000000000000a" && aws_launch_template.server.instance_type == "t4g.nano"
    error_message = "servers have another image, type or an open disk"
  }
  # The account's policy depends on these tags: no server may terminate a server, or move an interface that is not a
  # leader interface.
  assert {
    condition     = alltrue([for s in aws_launch_template.server.tag_specifications : s.tags["nstance:cluster"] == "example" && s.tags["nstance:server"] == "one" && !contains(keys(s.tags), "nstance:managed") && !contains(keys(s.tags), "nstance:shard")])
    error_message = "servers have other tags"
  }
  assert {
    condition     = aws_network_interface.leader.tags["nstance:leader"] == "one" && aws_network_interface.leader.tags["nstance:cluster"] == "example" && aws_network_interface.leader.subnet_id == "subnet-0a"
    error_message = "the leader's interface differs from the expected one"
  }
  assert {
    condition     = data.nstance_userdata.server.bucket == "example-bucket" && data.nstance_userdata.server.shard == "one" && data.nstance_userdata.server.leader_interface == "eni-0000000000000000a" && data.nstance_userdata.server.prefix == null
    error_message = "the servers have another boot script"
  }
  assert {
    condition     = jsonencode(data.nstance_userdata.server.leader_network) == jsonencode({ ipv4 = "10.0.1.100", ipv4_gateway = "10.0.1.1", ipv6 = null, mac_address = "02:00:00:ab:cd:ef" })
    error_message = "the leader's interface has another network: ${jsonencode(data.nstance_userdata.server.leader_network)}"
  }
  assert {
    condition     = jsonencode(nstance_shard.this.config.server.leader_network) == jsonencode({ ipv4 = "10.0.1.100", ipv6 = null, dns_name = null, interface_id = "eni-0000000000000000a" }) && nstance_shard.this.config.server.bind == null
    error_message = "the leader has other addresses"
  }
  assert {
    condition     = jsonencode(nstance_shard.this.config.server.subnet_pools) == jsonencode({ servers = ["subnet-0a"], workers = ["subnet-1a", "subnet-3a"] })
    error_message = "pools: ${jsonencode(nstance_shard.this.config.server.subnet_pools)}"
  }
  assert {
    condition     = nstance_shard.this.config.server.provider.kind == "aws" && nstance_shard.this.config.server.provider.region == "us-west-2" && nstance_shard.this.config.server.provider.zone == "us-west-2a"
    error_message = "the shard is elsewhere"
  }
  assert {
    condition     = nstance_shard.this.config.defaults.args == { IamInstanceProfile = { Arn = var.account.agent_instance_profile_arn }, SecurityGroupIds = ["sg-0000000000000000a"] }
    error_message = "arguments: ${jsonencode(nstance_shard.this.config.defaults.args)}"
  }
  assert {
    condition     = nstance_shard.this.config.defaults.userdata.content == "#!/bin/sh\n" && !nstance_shard.this.wait_for_leader && nstance_shard.this.timeouts.delete == "15m"
    error_message = "the shard has other defaults"
  }
  assert {
    condition     = nstance_shard.this.config.cluster.secrets.provider == "object-storage" && nstance_shard.this.config.cluster.secrets.encryption_key.source == var.cluster.encryption_key.source
    error_message = "secrets are elsewhere: ${jsonencode(nstance_shard.this.config.cluster)}"
  }
  # Only agents and the other servers may connect.
  assert {
    condition     = { for key, rule in aws_vpc_security_group_ingress_rule.server : key => rule.from_port } == { election = 8991, registration = 8992, agent = 8994 } && length(aws_vpc_security_group_ingress_rule.agent) == 0
    error_message = "open: ${jsonencode({ for key, rule in aws_vpc_security_group_ingress_rule.server : key => rule.from_port })}"
  }
  assert {
    condition     = output.shard.operator_addr == "10.0.1.100:8993" && output.shard.leader_ipv6 == null
    error_message = "outputs: ${jsonencode(output.shard)}"
  }
  assert {
    condition     = contains(one(aws_autoscaling_group.server.instance_refresh).triggers, "vpc_zone_identifier")
    error_message = "another subnet does not move the servers"
  }
}

run "standby" {
  variables {
    cluster = {
      id      = "example"
      bucket  = "example-bucket"
      prefix  = "clusters/example"
      region  = "us-west-2"
      secrets = { provider = "aws-secrets-manager", prefix = "nstance/example/" }
    }
    server_count    = 2
    wait_for_leader = true
  }

  assert {
    condition     = aws_autoscaling_group.server.wait_for_capacity_timeout == "${var.server_ready_timeout + 300}s"
    error_message = "an apply does not notice that a server's machine cannot start"
  }
  assert {
    condition     = nstance_servers_ready.this[0].machine_group.kind == "aws" && nstance_servers_ready.this[0].machine_group.name == aws_autoscaling_group.server.name && nstance_servers_ready.this[0].machine_group.region == "us-west-2"
    error_message = "a roll does not notice that a server's machine cannot start: ${jsonencode(nstance_servers_ready.this)}"
  }
  assert {
    condition     = aws_autoscaling_group.server.min_size == 2 && aws_autoscaling_group.server.max_size == 2 && aws_autoscaling_group.server.desired_capacity == 2 && nstance_shard.this.wait_for_leader
    error_message = "the number of servers is not 2"
  }
  assert {
    condition     = nstance_shard.this.config.cluster.secrets.provider == "aws-secrets-manager" && nstance_shard.this.config.cluster.secrets.prefix == "nstance/example/" && nstance_shard.this.config.cluster.secrets.encryption_key == null && data.nstance_userdata.server.prefix == "clusters/example"
    error_message = "secrets are elsewhere: ${jsonencode(nstance_shard.this.config.cluster)}"
  }
}

run "scaled_to_zero" {
  variables {
    server_count    = 0
    wait_for_leader = true
  }

  assert {
    condition     = aws_autoscaling_group.server.min_size == 0 && aws_autoscaling_group.server.max_size == 0 && aws_autoscaling_group.server.desired_capacity == 0
    error_message = "there are servers"
  }
  assert {
    condition     = !nstance_shard.this.wait_for_leader
    error_message = "no server will ever lead"
  }
}

run "dualstack" {
  variables {
    network = {
      vpc_id    = "vpc-0000000000000000a"
      ipv4_cidr = "10.0.0.0/16"
      ipv6_cidr = "2001:db8::/56"
      ip_family = "dualstack"
      subnets   = { servers = { us-west-2a = [{ id = "subnet-0a" }] } }
    }
    leader_network = { ipv4 = "10.0.1.100" }
  }

  assert {
    condition     = aws_network_interface.leader.private_ips == toset(["10.0.1.100"]) && aws_network_interface.leader.ipv6_address_count == 1
    error_message = "the leader has other addresses"
  }
  assert {
    condition     = nstance_shard.this.config.server.leader_network.ipv6 == "2001:db8::100" && nstance_shard.this.config.server.leader_network.ipv4 == "10.0.1.100" && nstance_shard.this.config.server.bind.agent_addr == "[::]:8994" && nstance_shard.this.config.server.bind.health_addr == "[::]:8990"
    error_message = "the servers listen elsewhere"
  }
  assert {
    condition     = length(aws_vpc_security_group_egress_rule.server_ipv6) == 1 && one(aws_launch_template.server.metadata_options).http_protocol_ipv6 == "disabled" && output.shard.agent_addr == "10.0.1.100:8994"
    error_message = "the servers are not dual stack"
  }
}

run "ipv6" {
  variables {
    network = {
      vpc_id    = "vpc-0000000000000000a"
      ipv4_cidr = "10.0.0.0/16"
      ipv6_cidr = "2001:db8::/56"
      ip_family = "ipv6"
      subnets   = { servers = { us-west-2a = [{ id = "subnet-0a", native = true }] } }
    }
  }

  assert {
    condition     = jsonencode(nstance_shard.this.config.server.leader_network) == jsonencode({ ipv4 = null, ipv6 = "2001:db8::100", dns_name = null, interface_id = "eni-0000000000000000a" }) && aws_network_interface.leader.ipv6_address_count == 1
    error_message = "the leader has other addresses"
  }
  assert {
    condition     = data.nstance_userdata.server.environment["AWS_USE_DUALSTACK_ENDPOINT"] == "true" && one(aws_launch_template.server.metadata_options).http_protocol_ipv6 == "enabled"
    error_message = "servers cannot reach AWS"
  }
  assert {
    condition     = nstance_shard.this.config.defaults.args.EnablePrimaryIpv6 && nstance_shard.this.config.defaults.args.MetadataOptions.HttpProtocolIpv6 == "enabled" && output.shard.operator_addr == "[2001:db8::100]:8993"
    error_message = "arguments: ${jsonencode(nstance_shard.this.config.defaults.args)}"
  }
}

run "balanced" {
  variables {
    network = {
      vpc_id    = "vpc-0000000000000000a"
      ipv4_cidr = "10.0.0.0/16"
      subnets   = { servers = { us-west-2a = [{ id = "subnet-0a" }] }, workers = { us-west-2a = [{ id = "subnet-1a" }] } }
      load_balancers = { web = {
        arn               = "arn:aws:elasticloadbalancing:us-west-2:123456789012:loadbalancer/net/example-web/0123456789abcdef"
        security_group_id = "sg-0000000000000000b"
        targets = {
          http = { arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/http/0123456789abcdef", port = 8080, protocol = "TCP", health_port = 8081 }
          dns  = { arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/dns/0123456789abcdef", port = 53, protocol = "TCP_UDP", health_port = 53 }
        }
      } }
    }
    health_check = {
      type               = "ELB"
      load_balancer_arn  = "arn:aws:elasticloadbalancing:us-west-2:123456789012:loadbalancer/net/example-web/0123456789abcdef"
      security_group_ids = ["sg-0000000000000000b"]
      listener_port      = 18990
    }
    health_access   = { ipv4_cidrs = ["10.0.9.0/24"] }
    operator_access = { security_group_ids = ["sg-0000000000000000c"] }
    agent_ingress   = { nodes = { protocol = "-1", self = true }, ssh = { protocol = "tcp", from_port = 22, ipv4_cidrs = ["10.0.0.0/8"] } }
    subnet_pools    = ["workers"]
    config = {
      server         = { health_check_interval = "5s", journal_retention = "240h", expiry = { forced_age = "30d" } }
      tenants        = { prod = { max_instances = 20 } }
      images         = { debian = { provider = "aws", owners = ["123456789012"], filters = [{ name = "name", values = ["debian-*"] }] } }
      load_balancers = { other = { provider = "aws", target_group_arns = ["arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/other/0123456789abcdef"] } }
      defaults       = { args = { KeyName = "k", SecurityGroupIds = ["sg-mine"] }, userdata = { content = "#!/bin/sh\ntrue\n" } }
      templates      = { web = { kind = "web", arch = "arm64", instance_type = "t4g.small", subnet_pool = "workers", args = { ImageId = "{{ .Image.debian }}" }, health_checks = { app = { http = { port = 8080, path = "/healthz" }, failure_threshold = 2 } } } }
      groups = { prod = { web = {
        template       = "web"
        size           = 3
        load_balancers = ["web", "other"]
        rollout        = { canary = 1, bake_time = "10m", on_image_change = true }
        disruption     = { windows = ["Mon-Fri 09:00-17:00 Europe/Berlin"], max_per_hour = 20 }
        purchase       = { spot_percent = 80, on_demand_base = 1, fallback = "on_demand", return_to_spot = "1h" }
        schedules      = [{ cron = "0 7 * * Mon-Fri", timezone = "Europe/Berlin", size = 20 }]
      } } }
    }
    server_image   = { id = "ami-0000000000000000b" }
    server_arch    = "amd64"
    server_args    = ["--debug"]
    agent_commands = ["true"]
  }

  assert {
    condition     = aws_autoscaling_group.server.health_check_type == "ELB" && aws_autoscaling_group.server.target_group_arns == toset([aws_lb_target_group.health[0].arn]) && aws_lb_listener.health[0].port == 18990
    error_message = "AWS does not ask for /health"
  }
  assert {
    condition     = one(aws_lb_target_group.health[0].health_check).path == "/health" && aws_lb_target_group.health[0].port == 8990 && one(aws_lb_target_group.health[0].health_check).protocol == "HTTP"
    error_message = "AWS checks another path"
  }
  assert {
    condition = { for key, rule in aws_vpc_security_group_ingress_rule.server : key => [rule.from_port, rule.to_port, coalesce(rule.cidr_ipv4, rule.referenced_security_group_id)] } == {
      election           = [8991, 8991, "sg-0000000000000000a"]
      registration       = [8992, 8992, "sg-0000000000000000a"]
      agent              = [8994, 8994, "sg-0000000000000000a"]
      "operator-group-0" = [8992, 8993, "sg-0000000000000000c"]
      "health-ipv4-0"    = [8990, 8990, "10.0.9.0/24"]
      "checks-group-0"   = [8990, 8990, "sg-0000000000000000b"]
    }
    error_message = "open: ${jsonencode(keys(aws_vpc_security_group_ingress_rule.server))}"
  }
  # EC2 accepts no other characters in descriptions.
  assert {
    condition     = alltrue([for rule in concat(values(aws_vpc_security_group_ingress_rule.server), values(aws_vpc_security_group_ingress_rule.agent)) : can(regex("^[a-zA-Z0-9 ._:/()#,@+=&;{}!$*-]{1,255}$", rule.description))])
    error_message = "descriptions: ${jsonencode([for rule in values(aws_vpc_security_group_ingress_rule.server) : rule.description])}"
  }
  assert {
    condition = jsonencode({ for key, rule in aws_vpc_security_group_ingress_rule.agent : key => [rule.ip_protocol, rule.from_port] }) == jsonencode({
      "lb-web-http-tcp"    = ["tcp", 8080]
      "lb-web-http-health" = ["tcp", 8081]
      "lb-web-dns-tcp"     = ["tcp", 53]
      "lb-web-dns-udp"     = ["udp", 53]
      "nodes-self"         = ["-1", null]
      "ssh-ipv4-0"         = ["tcp", 22]
    })
    error_message = "open: ${jsonencode({ for key, rule in aws_vpc_security_group_ingress_rule.agent : key => [rule.ip_protocol, rule.from_port] })}"
  }
  assert {
    condition     = nstance_shard.this.config.groups.prod.web.rollout.canary == 1 && nstance_shard.this.config.groups.prod.web.purchase.spot_percent == 80 && nstance_shard.this.config.groups.prod.web.schedules[0].size == 20 && nstance_shard.this.config.server.journal_retention == "240h"
    error_message = "groups: ${jsonencode(nstance_shard.this.config.groups)}"
  }
  assert {
    condition     = { for name, lb in nstance_shard.this.config.load_balancers : name => length(lb.target_group_arns) } == { web = 2, other = 1 } && nstance_shard.this.config.load_balancers.web.provider == "aws"
    error_message = "load balancers: ${jsonencode(nstance_shard.this.config.load_balancers)}"
  }
  assert {
    condition     = nstance_shard.this.config.defaults.args == { IamInstanceProfile = { Arn = var.account.agent_instance_profile_arn }, KeyName = "k", SecurityGroupIds = ["sg-mine"] } && nstance_shard.this.config.defaults.userdata.content == "#!/bin/sh\ntrue\n"
    error_message = "args does not override the defaults: ${jsonencode(nstance_shard.this.config.defaults.args)}"
  }
  assert {
    condition     = jsonencode(nstance_shard.this.config.server.subnet_pools) == jsonencode({ workers = ["subnet-1a"] }) && nstance_shard.this.config.groups.prod.web.size == 3 && contains(keys(nstance_shard.this.config.tenants), "prod")
    error_message = "the configuration is not as asked for"
  }
  assert {
    condition     = nstance_shard.this.config.templates["web"].health_checks["app"].http.path == "/healthz" && nstance_shard.this.config.templates["web"].health_checks["app"].failure_threshold == 2
    error_message = "the health checks are ${jsonencode(nstance_shard.this.config.templates["web"].health_checks)}"
  }
  assert {
    condition     = nstance_shard.this.config.server.health_check_interval == "5s" && nstance_shard.this.config.server.expiry.forced_age == "30d" && data.nstance_userdata.server.extra_args == tolist(["--debug"])
    error_message = "settings are not as asked for"
  }
}

run "dns" {
  variables {
    leader_dns = { zone_id = "Z0000000000000", name = "leader.example.internal" }
  }

  assert {
    condition     = nstance_shard.this.config.server.leader_network.dns_name == "leader.example.internal" && output.shard.agent_addr == "leader.example.internal:8994"
    error_message = "clients are not given the leader's name"
  }
  assert {
    condition     = one(aws_route53_record.leader[0].records) == "10.0.1.100" && length(aws_route53_record.leader_ipv6) == 0
    error_message = "the name has other addresses"
  }
}
