output "network" {
  description = "VPC, subnets by role and zone, and load balancers, as the value of the variable `network` of the module `shard`."
  # Users of this output are created after the routes and destroyed before them. Servers need the routes until their
  # last VM is terminated.
  depends_on = [
    aws_route.public_ipv4,
    aws_route.public_ipv6,
    aws_route.nat,
    aws_route.nat64,
    aws_route.private_ipv6,
    aws_route_table_association.this,
    aws_vpc_endpoint.s3,
    aws_vpc_endpoint.interface,
    aws_vpc_security_group_ingress_rule.endpoints,
    aws_vpc_security_group_ingress_rule.endpoints_ipv6,
    aws_lb_listener.this,
    aws_vpc_security_group_ingress_rule.balancer,
    aws_vpc_security_group_egress_rule.balancer,
    aws_vpc_security_group_egress_rule.balancer_ipv6,
  ]
  value = {
    vpc_id    = local.vpc_id
    ipv4_cidr = local.ipv4_cidr
    ipv6_cidr = local.ipv6_cidr
    ip_family = var.ip_family
    subnets = { for role, zones in var.subnets : role => { for zone, list in zones : zone => [
      for place, subnet in list : {
        id        = local.subnet_ids["${role}/${zone}/${place}"]
        ipv4_cidr = subnet.existing == null ? subnet.ipv4_cidr : data.aws_subnet.existing["${role}/${zone}/${place}"].cidr_block
        native    = local.subnets["${role}/${zone}/${place}"].native
        public    = subnet.public
        shards    = subnet.shards
      }
    ] } }
    load_balancers = { for name, lb in var.load_balancers : name => {
      arn               = aws_lb.this[name].arn
      dns_name          = aws_lb.this[name].dns_name
      zone_id           = aws_lb.this[name].zone_id
      security_group_id = aws_security_group.balancer[name].id
      targets = { for key, listener in lb.listeners : key => {
        arn         = aws_lb_target_group.this["${name}/${key}"].arn
        port        = local.listeners["${name}/${key}"].target_port
        protocol    = local.listeners["${name}/${key}"].target_protocol
        health_port = coalesce(listener.health_check.port, local.listeners["${name}/${key}"].target_port)
      } }
    } }
  }
}

output "vpc_id" {
  description = "ID of the VPC, as the value of the variable `vpc_id` of the module `account`."
  value       = local.vpc_id
}

output "target_group_arns" {
  description = "ARNs of the target groups, by `load balancer/listener`, as the value of the variable `target_group_arns` of the module `account`."
  value       = { for key, group in aws_lb_target_group.this : key => group.arn }
}

output "nat_public_ips" {
  description = "Public addresses of the NAT gateways, by subnet. Traffic from private subnets to the internet has these source addresses."
  value       = { for key, eip in aws_eip.nat : key => eip.public_ip }
}
