# Permitted connections. The servers accept agents on 8992 and 8994, operators on 8992 and 8993, other servers on 8991,
# and health checks on 8990.

locals {
  ports = { health = 8990, election = 8991, registration = 8992, operator = 8993, agent = 8994 }

  # Sources of operators and of health checks. The keys are known at plan time.
  operator_sources = merge(
    { for i, cidr in var.operator_access.ipv4_cidrs : "operator-ipv4-${i}" => { ipv4 = cidr } },
    { for i, cidr in var.operator_access.ipv6_cidrs : "operator-ipv6-${i}" => { ipv6 = cidr } },
    { for i, id in var.operator_access.security_group_ids : "operator-group-${i}" => { group = id } },
  )
  checks_from_vpc = var.health_check.type == "ELB" && length(var.health_check.security_group_ids) == 0
  health_sources = merge(
    { for i, cidr in var.health_access.ipv4_cidrs : "health-ipv4-${i}" => { ipv4 = cidr } },
    { for i, cidr in var.health_access.ipv6_cidrs : "health-ipv6-${i}" => { ipv6 = cidr } },
    { for i, id in var.health_access.security_group_ids : "health-group-${i}" => { group = id } },
    { for i, id in var.health_check.security_group_ids : "checks-group-${i}" => { group = id } if var.health_check.type == "ELB" },
    { for key in ["checks-ipv4"] : key => { ipv4 = var.network.ipv4_cidr } if local.checks_from_vpc },
    { for key in ["checks-ipv6"] : key => { ipv6 = var.network.ipv6_cidr } if local.checks_from_vpc && local.ipv6 },
  )

  server_ingress = merge(
    { election = { port = local.ports.election, group = aws_security_group.server.id, what = "The other server of the shard" } },
    { for name in ["registration", "agent"] : name => { port = local.ports[name], group = aws_security_group.agent.id, what = "Agents" } },
    # One rule has both ports, because a security group has room for 60 rules.
    { for key, source in local.operator_sources : key => merge(source, { port = local.ports.registration, to_port = local.ports.operator, what = "Operators" }) },
    { for key, source in local.health_sources : key => merge(source, { port = local.ports.health, what = "Health checks and metrics" }) },
  )

  # What counts against the quota of a group. It must not refer to the groups themselves.
  server_counted = merge(
    { for key in ["election", "registration", "agent"] : key => { ipv4 = null, ipv6 = null, group = key } },
    { for key, source in local.operator_sources : key => { ipv4 = try(source.ipv4, null), ipv6 = try(source.ipv6, null), group = try(source.group, null) } },
    { for key, source in local.health_sources : key => { ipv4 = try(source.ipv4, null), ipv6 = try(source.ipv6, null), group = try(source.group, null) } },
  )
  agent_counted = merge(
    { for key in keys(local.balancer_ingress) : key => { ipv4 = null, ipv6 = null, group = key } },
    merge([for name, rule in var.agent_ingress : merge(
      { for i, cidr in rule.ipv4_cidrs : "${name}-ipv4-${i}" => { ipv4 = cidr, ipv6 = null, group = null } },
      { for i, cidr in rule.ipv6_cidrs : "${name}-ipv6-${i}" => { ipv4 = null, ipv6 = cidr, group = null } },
      { for i, id in concat(rule.security_group_ids, rule.self ? ["self"] : []) : "${name}-group-${i}" => { ipv4 = null, ipv6 = null, group = name } },
    )]...),
  )

  # The network's load balancers may connect to the ports of their targets and of their health checks.
  balancer_ingress = merge(flatten([for name, lb in var.network.load_balancers : [for key, target in lb.targets : merge(
    { for protocol in(target.protocol == "TCP_UDP" ? ["tcp", "udp"] : [lower(target.protocol)]) : "lb-${name}-${key}-${protocol}" => {
      protocol = protocol, from_port = target.port, to_port = target.port, group = lb.security_group_id, what = "Load balancer ${name}"
    } },
    { for what in ["health"] : "lb-${name}-${key}-health" => {
      protocol = "tcp", from_port = target.health_port, to_port = target.health_port, group = lb.security_group_id, what = "Health checks of load balancer ${name}"
    } if target.health_port != target.port || target.protocol == "UDP" },
  )]])...)
  other_ingress = merge(flatten([for name, rule in var.agent_ingress : [for source in concat(
    [for i, cidr in rule.ipv4_cidrs : { key = "ipv4-${i}", ipv4 = cidr, ipv6 = null, group = null }],
    [for i, cidr in rule.ipv6_cidrs : { key = "ipv6-${i}", ipv4 = null, ipv6 = cidr, group = null }],
    [for i, id in rule.security_group_ids : { key = "group-${i}", ipv4 = null, ipv6 = null, group = id }],
    [for self in rule.self ? ["self"] : [] : { key = self, ipv4 = null, ipv6 = null, group = aws_security_group.agent.id }],
    ) : {
    "${name}-${source.key}" = merge(source, {
      protocol = rule.protocol, from_port = rule.from_port, to_port = rule.to_port == null ? rule.from_port : rule.to_port, what = name
    })
  }]])...)
  agent_ingress = merge(local.balancer_ingress, local.other_ingress)
}

resource "aws_security_group" "server" {
  name        = "${local.name}-server"
  description = "Servers of the Nstance shard ${var.cluster.id}/${var.shard}"
  vpc_id      = var.network.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-server" })

  lifecycle {
    # AWS counts rules for IPv4 and IPv6 separately. A rule with a security group counts as both.
    precondition {
      condition     = alltrue([for family in ["ipv4", "ipv6"] : length([for rule in values(local.server_counted) : rule if try(rule[family], null) != null || try(rule.group, null) != null]) <= var.security_group_rules])
      error_message = "operator_access, health_access and health_check make more than ${var.security_group_rules} inbound rules of one security group. Use fewer, larger address ranges, or raise the quota \"Inbound or outbound rules per security group\" and set security_group_rules."
    }
  }
}

resource "aws_security_group" "agent" {
  name        = "${local.name}-agent"
  description = "VMs of the Nstance shard ${var.cluster.id}/${var.shard}"
  vpc_id      = var.network.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-agent" })

  lifecycle {
    # AWS counts rules for IPv4 and IPv6 separately. A rule with a security group counts as both.
    precondition {
      condition     = alltrue([for family in ["ipv4", "ipv6"] : length([for rule in values(local.agent_counted) : rule if try(rule[family], null) != null || try(rule.group, null) != null]) <= var.security_group_rules])
      error_message = "agent_ingress and the network's load_balancers make more than ${var.security_group_rules} inbound rules of one security group. Use fewer, larger address ranges, or raise the quota \"Inbound or outbound rules per security group\" and set security_group_rules."
    }
  }
}

resource "aws_vpc_security_group_ingress_rule" "server" {
  for_each                     = local.server_ingress
  security_group_id            = aws_security_group.server.id
  description                  = each.value.what
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = try(each.value.to_port, each.value.port)
  cidr_ipv4                    = try(each.value.ipv4, null)
  cidr_ipv6                    = try(each.value.ipv6, null)
  referenced_security_group_id = try(each.value.group, null)
}

resource "aws_vpc_security_group_ingress_rule" "agent" {
  for_each                     = local.agent_ingress
  security_group_id            = aws_security_group.agent.id
  description                  = each.value.what
  ip_protocol                  = each.value.protocol
  from_port                    = each.value.from_port
  to_port                      = each.value.to_port
  cidr_ipv4                    = try(each.value.ipv4, null)
  cidr_ipv6                    = try(each.value.ipv6, null)
  referenced_security_group_id = try(each.value.group, null)
}

resource "aws_vpc_security_group_egress_rule" "server_ipv4" {
  security_group_id = aws_security_group.server.id
  description       = "Everywhere"
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_egress_rule" "server_ipv6" {
  count             = local.ipv6 ? 1 : 0
  security_group_id = aws_security_group.server.id
  description       = "Everywhere"
  ip_protocol       = "-1"
  cidr_ipv6         = "::/0"
}

resource "aws_vpc_security_group_egress_rule" "agent_ipv4" {
  security_group_id = aws_security_group.agent.id
  description       = "Everywhere"
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_egress_rule" "agent_ipv6" {
  count             = local.ipv6 ? 1 : 0
  security_group_id = aws_security_group.agent.id
  description       = "Everywhere"
  ip_protocol       = "-1"
  cidr_ipv6         = "::/0"
}
