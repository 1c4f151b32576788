mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["us-west-2a", "us-west-2b", "us-west-2c", "us-west-2d", "us-west-2e", "us-west-2f"] }
  }
  mock_data "aws_region" {
    defaults = { id = "us-west-2" }
  }
  mock_resource "aws_vpc" {
    defaults = { id = "vpc-0000000000000000b", ipv6_cidr_block = "2001:db8::/56" }
  }
  mock_resource "aws_lb" {
    defaults = { arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:loadbalancer/net/example-web/0123456789abcdef" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/example-web/0123456789abcdef" }
  }
}

variables {
  name = "example"
  subnets = {
    public  = { us-west-2a = [{ ipv4_cidr = "10.0.0.0/24", public = true, nat_gateway = true }], us-west-2b = [{ ipv4_cidr = "10.0.1.0/24", public = true }] }
    servers = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24" }] }
    workers = {
      us-west-2a = [{ ipv4_cidr = "10.0.16.0/20", shards = ["one"] }, { ipv4_cidr = "10.0.32.0/20" }]
      us-west-2b = [{ ipv4_cidr = "10.0.48.0/20" }]
    }
  }
}

run "ipv4" {
  assert {
    condition     = length(aws_vpc.this) == 1 && !aws_vpc.this[0].assign_generated_ipv6_cidr_block && aws_vpc.this[0].enable_dns_hostnames
    error_message = "the VPC is not as asked for"
  }
  assert {
    condition = { for key, s in aws_subnet.this : key => [s.cidr_block, s.availability_zone, s.map_public_ip_on_launch] } == {
      "public/us-west-2a/0"  = ["10.0.0.0/24", "us-west-2a", true]
      "public/us-west-2b/0"  = ["10.0.1.0/24", "us-west-2b", true]
      "servers/us-west-2a/0" = ["10.0.2.0/24", "us-west-2a", false]
      "workers/us-west-2a/0" = ["10.0.16.0/20", "us-west-2a", false]
      "workers/us-west-2a/1" = ["10.0.32.0/20", "us-west-2a", false]
      "workers/us-west-2b/0" = ["10.0.48.0/20", "us-west-2b", false]
    }
    error_message = "subnets are not as asked for"
  }
  assert {
    condition     = keys(aws_nat_gateway.this) == ["public/us-west-2a/0"] && aws_nat_gateway.this["public/us-west-2a/0"].subnet_id == aws_subnet.this["public/us-west-2a/0"].id
    error_message = "there has to be one NAT gateway: ${jsonencode(keys(aws_nat_gateway.this))}"
  }
  # A zone without a NAT gateway uses the NAT gateway of another zone.
  assert {
    condition     = { for key, r in aws_route.nat : key => r.destination_cidr_block } == { for key in ["servers/us-west-2a/0", "workers/us-west-2a/0", "workers/us-west-2a/1", "workers/us-west-2b/0"] : key => "0.0.0.0/0" }
    error_message = "private subnets have no way out: ${jsonencode(keys(aws_route.nat))}"
  }
  assert {
    condition     = length(aws_internet_gateway.this) == 1 && aws_route.public_ipv4[0].gateway_id == aws_internet_gateway.this[0].id && length(aws_route.public_ipv6) == 0 && length(aws_egress_only_internet_gateway.this) == 0
    error_message = "gateways are not as asked for"
  }
  assert {
    condition     = toset([for key, a in aws_route_table_association.this : key if a.route_table_id == aws_route_table.public[0].id]) == toset(["public/us-west-2a/0", "public/us-west-2b/0"]) && length(aws_route_table_association.this) == 6
    error_message = "every subnet needs its route table"
  }
  assert {
    condition     = aws_vpc_endpoint.s3[0].service_name == "com.amazonaws.us-west-2.s3" && length(aws_vpc_endpoint.s3[0].route_table_ids) >= 1 && length(aws_vpc_endpoint.interface) == 0
    error_message = "endpoints are not as asked for"
  }
  assert {
    condition     = output.network.subnets.workers["us-west-2a"][0].shards == tolist(["one"]) && output.network.subnets.workers["us-west-2a"][1].shards == null && output.network.subnets.workers["us-west-2a"][1].id == aws_subnet.this["workers/us-west-2a/1"].id
    error_message = "the output has other subnets: ${jsonencode(output.network.subnets)}"
  }
  assert {
    condition     = output.network.ipv4_cidr == "10.0.0.0/16" && output.network.ipv6_cidr == null && output.vpc_id == "vpc-0000000000000000b" && length(output.target_group_arns) == 0
    error_message = "the outputs differ from the expected ones"
  }
}

run "named_nat_gateways" {
  variables {
    subnets = {
      public = { us-west-2a = [{ ipv4_cidr = "10.0.0.0/24", public = true, nat_gateway = true }], us-west-2b = [{ ipv4_cidr = "10.0.1.0/24", public = true, nat_gateway = true }] }
      servers = {
        us-west-2a = [{ ipv4_cidr = "10.0.2.0/24", nat_subnet = "public/us-west-2b" }]
        us-west-2b = [{ ipv4_cidr = "10.0.3.0/24" }]
        us-west-2c = [{ ipv4_cidr = "10.0.4.0/24", nat_subnet = "public/us-west-2b/0" }]
      }
    }
  }

  assert {
    condition     = { for key, nat in local.nat_for : key => nat } == { "servers/us-west-2a/0" = "public/us-west-2b/0", "servers/us-west-2b/0" = "public/us-west-2b/0", "servers/us-west-2c/0" = "public/us-west-2b/0" }
    error_message = "ways out: ${jsonencode(local.nat_for)}"
  }
}

run "without_nat" {
  variables {
    nat_mode  = "none"
    endpoints = { s3 = false, interface = ["ec2", "secretsmanager"], subnets = "servers" }
  }

  assert {
    condition     = length(aws_nat_gateway.this) == 0 && length(aws_eip.nat) == 0 && length(aws_route.nat) == 0 && length(aws_internet_gateway.this) == 1
    error_message = "there are NAT gateways: ${jsonencode(keys(aws_nat_gateway.this))}"
  }
  assert {
    condition     = toset(keys(aws_vpc_endpoint.interface)) == toset(["ec2", "secretsmanager"]) && aws_vpc_endpoint.interface["ec2"].private_dns_enabled && length(aws_vpc_endpoint.s3) == 0
    error_message = "endpoints are not as asked for"
  }
  assert {
    condition     = toset(aws_vpc_endpoint.interface["ec2"].subnet_ids) == toset([aws_subnet.this["servers/us-west-2a/0"].id]) && aws_vpc_security_group_ingress_rule.endpoints[0].cidr_ipv4 == "10.0.0.0/16"
    error_message = "endpoints are elsewhere"
  }
}

run "dualstack" {
  variables {
    ip_family = "dualstack"
    subnets = {
      public  = { us-west-2a = [{ ipv4_cidr = "10.0.0.0/24", ipv6_netnum = 0, public = true }] }
      workers = { us-west-2a = [{ ipv4_cidr = "10.0.1.0/24", ipv6_netnum = 255 }, { ipv4_cidr = "10.0.2.0/24", ipv6_cidr = "2001:db8:0:7::/64" }] }
    }
    load_balancers = { web = { listeners = { http = { port = 80, target_port = 8080 } } } }
  }

  assert {
    condition     = aws_vpc.this[0].assign_generated_ipv6_cidr_block && [for key in ["public/us-west-2a/0", "workers/us-west-2a/0", "workers/us-west-2a/1"] : aws_subnet.this[key].ipv6_cidr_block] == ["2001:db8::/64", "2001:db8:0:ff::/64", "2001:db8:0:7::/64"]
    error_message = "IPv6 networks are ${jsonencode([for s in aws_subnet.this : s.ipv6_cidr_block])}"
  }
  assert {
    condition     = alltrue([for s in aws_subnet.this : s.assign_ipv6_address_on_creation && !s.ipv6_native])
    error_message = "machines get no IPv6 address"
  }
  assert {
    condition     = aws_route.public_ipv6[0].gateway_id == aws_internet_gateway.this[0].id && aws_route.private_ipv6["workers/us-west-2a/0"].egress_only_gateway_id == aws_egress_only_internet_gateway.this[0].id
    error_message = "there is no way out over IPv6"
  }
  assert {
    condition     = aws_lb.this["web"].ip_address_type == "dualstack" && aws_lb_target_group.this["web/http"].ip_address_type == "ipv4" && aws_vpc_security_group_ingress_rule.balancer["web/http/tcp/ipv6/0"].cidr_ipv6 == "::/0"
    error_message = "the load balancer is not dual stack"
  }
}

run "ipv6" {
  variables {
    ip_family = "ipv6"
    subnets = {
      public  = { us-west-2a = [{ ipv4_cidr = "10.0.0.0/24", ipv6_netnum = 0, public = true, nat_gateway = true }] }
      workers = { us-west-2a = [{ ipv6_netnum = 1 }] }
    }
    load_balancers = { web = { internal = true, listeners = { http = { port = 80 } } } }
  }

  assert {
    condition     = aws_subnet.this["workers/us-west-2a/0"].ipv6_native && !aws_subnet.this["public/us-west-2a/0"].ipv6_native && output.network.subnets.workers["us-west-2a"][0].native
    error_message = "the wrong subnets have IPv6 only"
  }
  assert {
    condition     = aws_subnet.this["workers/us-west-2a/0"].enable_dns64 && aws_route.nat64["workers/us-west-2a/0"].destination_ipv6_cidr_block == "64:ff9b::/96" && length(aws_route.nat) == 0
    error_message = "hosts without IPv6 cannot be reached"
  }
  assert {
    condition     = aws_lb_target_group.this["web/http"].ip_address_type == "ipv6" && aws_vpc_security_group_ingress_rule.balancer["web/http/tcp/ipv6/0"].cidr_ipv6 == "2001:db8::/56" && aws_lb.this["web"].internal
    error_message = "the load balancer is not as asked for"
  }
}

run "load_balancers" {
  variables {
    load_balancers = {
      web = { listeners = {
        http = { port = 80, target_port = 8080, health_check = { path = "/healthz", port = 8081 } }
        dns  = { port = 53, protocol = "TCP_UDP", health_check = { port = 8081 } }
      } }
      int = { subnets = "servers", internal = true, listeners = { api = { port = 6443, protocol = "TLS", certificate_arn = "arn:aws:acm:us-west-2:123456789012:certificate/00000000-0000-0000-0000-000000000000" } } }
    }
  }

  assert {
    condition     = length(aws_lb.this["web"].subnets) >= 1 && !aws_lb.this["web"].internal && aws_lb.this["web"].load_balancer_type == "network" && aws_lb.this["int"].internal
    error_message = "the load balancers are not as asked for"
  }
  assert {
    condition     = aws_lb_target_group.this["web/http"].port == 8080 && one(aws_lb_target_group.this["web/http"].health_check).protocol == "HTTP" && one(aws_lb_target_group.this["web/http"].health_check).port == "8081"
    error_message = "the target group is not as asked for"
  }
  assert {
    condition     = aws_lb_target_group.this["int/api"].protocol == "TCP" && aws_lb_listener.this["int/api"].protocol == "TLS" && one(aws_lb_target_group.this["int/api"].health_check).protocol == "TCP"
    error_message = "TLS ends at the load balancer"
  }
  assert {
    condition     = alltrue([for g in aws_lb_target_group.this : can(regex("^[A-Za-z0-9][A-Za-z0-9-]{0,30}[A-Za-z0-9]$", g.name))]) && length(distinct([for g in aws_lb_target_group.this : g.name])) == 3
    error_message = "names of target groups: ${jsonencode([for g in aws_lb_target_group.this : g.name])}"
  }
  assert {
    condition     = toset(keys(aws_vpc_security_group_ingress_rule.balancer)) == toset(["web/http/tcp/ipv4/0", "web/dns/tcp/ipv4/0", "web/dns/udp/ipv4/0", "int/api/tcp/ipv4/0"]) && aws_vpc_security_group_ingress_rule.balancer["int/api/tcp/ipv4/0"].cidr_ipv4 == "10.0.0.0/16"
    error_message = "who may connect: ${jsonencode(keys(aws_vpc_security_group_ingress_rule.balancer))}"
  }
  assert {
    condition     = output.network.load_balancers.web.targets.http.health_port == 8081 && output.network.load_balancers.web.targets.http.port == 8080 && toset(keys(output.target_group_arns)) == toset(["web/http", "web/dns", "int/api"])
    error_message = "the output has other load balancers"
  }
}
