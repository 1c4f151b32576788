# Network load balancers, a target group for each listener, and a security group for each load balancer.

locals {
  listeners = merge([for name, lb in var.load_balancers : {
    for key, listener in lb.listeners : "${name}/${key}" => merge(listener, {
      balancer        = name
      target_port     = coalesce(listener.target_port, listener.port)
      target_protocol = listener.protocol == "TLS" ? "TCP" : listener.protocol
    })
  }]...)

  # Permitted clients: one rule for each listener and network.
  balancer_sources = { for name, lb in var.load_balancers : name => {
    ipv4 = lb.allow_ipv4_cidrs != null ? lb.allow_ipv4_cidrs : lb.internal ? [local.ipv4_cidr] : ["0.0.0.0/0"]
    ipv6 = !local.ipv6 ? [] : lb.allow_ipv6_cidrs != null ? lb.allow_ipv6_cidrs : lb.internal ? [local.ipv6_cidr] : ["::/0"]
  } }
  balancer_rules = merge(flatten([for key, l in local.listeners : [for protocol in(l.protocol == "TCP_UDP" ? ["tcp", "udp"] : l.protocol == "UDP" ? ["udp"] : ["tcp"]) : {
    for rule in concat(
      [for i, cidr in local.balancer_sources[l.balancer].ipv4 : { family = "ipv4", place = i, cidr = cidr }],
      [for i, cidr in local.balancer_sources[l.balancer].ipv6 : { family = "ipv6", place = i, cidr = cidr }],
    ) : "${key}/${protocol}/${rule.family}/${rule.place}" => { balancer = l.balancer, port = l.port, protocol = protocol, family = rule.family, cidr = rule.cidr }
  }]])...)
}

resource "aws_security_group" "balancer" {
  for_each    = var.load_balancers
  name        = "${var.name}-lb-${each.key}"
  description = "Load balancer ${each.key}"
  vpc_id      = local.vpc_id
  tags        = merge({ Name = "${var.name}-lb-${each.key}" }, var.tags)
}

resource "aws_vpc_security_group_ingress_rule" "balancer" {
  for_each          = local.balancer_rules
  security_group_id = aws_security_group.balancer[each.value.balancer].id
  description       = "Clients of port ${each.value.port}"
  ip_protocol       = each.value.protocol
  from_port         = each.value.port
  to_port           = each.value.port
  cidr_ipv4         = each.value.family == "ipv4" ? each.value.cidr : null
  cidr_ipv6         = each.value.family == "ipv6" ? each.value.cidr : null
}

resource "aws_vpc_security_group_egress_rule" "balancer" {
  for_each          = var.load_balancers
  security_group_id = aws_security_group.balancer[each.key].id
  description       = "Targets and their health checks"
  ip_protocol       = "-1"
  cidr_ipv4         = local.ipv4_cidr
}

resource "aws_vpc_security_group_egress_rule" "balancer_ipv6" {
  for_each          = local.ipv6 ? var.load_balancers : {}
  security_group_id = aws_security_group.balancer[each.key].id
  description       = "Targets and their health checks"
  ip_protocol       = "-1"
  cidr_ipv6         = local.ipv6_cidr
}

resource "aws_lb" "this" {
  # An internet-facing load balancer needs the routes to the internet first.
  depends_on = [aws_internet_gateway.this, aws_route.public_ipv4, aws_route.public_ipv6]

  # The AWS provider replaces a load balancer that loses a subnet, as at the removal of a zone. Only a generated name is
  # free for the replacement. The AWS provider limits the prefix to 6 characters.
  for_each                         = var.load_balancers
  name_prefix                      = "${trim(substr(each.key, 0, 5), "-")}-"
  load_balancer_type               = "network"
  internal                         = each.value.internal
  subnets                          = local.ids_of_role[each.value.subnets]
  security_groups                  = [aws_security_group.balancer[each.key].id]
  ip_address_type                  = local.ipv6 ? "dualstack" : "ipv4"
  enable_cross_zone_load_balancing = each.value.cross_zone
  enable_deletion_protection       = each.value.deletion_protection
  tags                             = merge({ Name = "${var.name}-${each.key}" }, var.tags)

  # Shards register their VMs with the replacement before the old load balancer is destroyed.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_target_group" "this" {
  # A name has at most 32 characters. It contains a hash of what cannot be changed in place, so that a replacement has
  # another name. A target group belongs to one load balancer only, so it is replaced with its load balancer.
  for_each = local.listeners
  name = join("-", [
    trim(substr("${var.name}-${replace(each.key, "/", "-")}", 0, 24), "-"),
    substr(sha1("${aws_lb.this[each.value.balancer].arn} ${each.key} ${each.value.target_port} ${each.value.target_protocol} ${var.ip_family}"), 0, 7),
  ])
  vpc_id               = local.vpc_id
  target_type          = "instance"
  port                 = each.value.target_port
  protocol             = each.value.target_protocol
  ip_address_type      = var.ip_family == "ipv6" ? "ipv6" : "ipv4"
  deregistration_delay = each.value.deregistration_delay
  tags                 = var.tags

  health_check {
    protocol            = each.value.health_check.path == null ? "TCP" : "HTTP"
    port                = each.value.health_check.port == null ? "traffic-port" : tostring(each.value.health_check.port)
    path                = each.value.health_check.path
    interval            = each.value.health_check.interval
    healthy_threshold   = each.value.health_check.healthy_threshold
    unhealthy_threshold = each.value.health_check.unhealthy_threshold
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "this" {
  for_each          = local.listeners
  load_balancer_arn = aws_lb.this[each.value.balancer].arn
  port              = each.value.port
  protocol          = each.value.protocol
  certificate_arn   = each.value.certificate_arn
  ssl_policy        = each.value.protocol == "TLS" ? "ELBSecurityPolicy-TLS13-1-2-2021-06" : null
  tags              = var.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this[each.key].arn
  }
}
