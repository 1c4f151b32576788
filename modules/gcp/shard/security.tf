# Permitted connections. The servers accept agents on 8992 and 8994, operators on 8992 and 8993, other servers on 8991,
# and health checks on 8990, which the module network permits. Egress is permitted by default.

locals {
  ports = { health = 8990, election = 8991, registration = 8992, operator = 8993, agent = 8994 }

  # Names of tags have at most 63 characters, as those of instances.
  server_tag = "${local.name}-server"
  agent_tag  = "${local.name}-agent"

  server_ingress = merge(
    # Source tags match only the primary addresses of VMs, not their alias addresses.
    {
      election = { ports = [local.ports.election], tags = [local.server_tag], cidrs = [], what = "The other server of the shard" }
      agents   = { ports = [local.ports.registration, local.ports.agent], tags = [local.agent_tag], cidrs = [], what = "Agents" }
    },
    { for key, tags in { operator-tags = var.operator_access.tags } : key => { ports = [local.ports.registration, local.ports.operator], tags = tags, cidrs = [], what = "Operators" } if length(tags) > 0 },
    { for key, cidrs in { operators = var.operator_access.ipv4_cidrs } : key => { ports = [local.ports.registration, local.ports.operator], tags = [], cidrs = cidrs, what = "Operators" } if length(cidrs) > 0 },
    { for key, tags in { health-tags = var.health_access.tags } : key => { ports = [local.ports.health], tags = tags, cidrs = [], what = "Health checks and metrics" } if length(tags) > 0 },
    { for key, cidrs in { health = var.health_access.ipv4_cidrs } : key => { ports = [local.ports.health], tags = [], cidrs = cidrs, what = "Health checks and metrics" } if length(cidrs) > 0 },
  )

  # Clients of the load balancers reach the VMs with their own addresses.
  balancer_ingress = merge([for name, lb in local.balancers : {
    for protocol in distinct([for port in lb.ports : port.protocol]) : "lb-${name}-${protocol}" => {
      protocol = protocol, ports = [for port in lb.ports : tostring(port.port) if port.protocol == protocol], cidrs = lb.sources, tags = [], what = "Clients of load balancer ${name}"
    }
  }]...)
  other_ingress = merge([for name, rule in var.agent_ingress : merge(
    { for key in ["in-${name}"] : key => merge(rule, { cidrs = rule.ipv4_cidrs, tags = [] }) if length(rule.ipv4_cidrs) > 0 },
    { for key in ["in-${name}-tags"] : key => merge(rule, { cidrs = [], tags = concat(rule.tags, rule.self ? [local.agent_tag] : []) }) if length(rule.tags) > 0 || rule.self },
  )]...)
  agent_ingress = merge(local.balancer_ingress, { for key, rule in local.other_ingress : key => {
    protocol = rule.protocol == "-1" ? "all" : rule.protocol
    ports    = rule.from_port == null ? null : [rule.to_port == null ? tostring(rule.from_port) : "${rule.from_port}-${rule.to_port}"]
    cidrs    = rule.cidrs, tags = rule.tags, what = key
  } })
}

locals {
  long_firewall_names = { for rule in concat([for key in keys(local.server_ingress) : "server-${key}"], [for key in keys(local.agent_ingress) : "agent-${key}"]) : rule => "${local.name}-${rule}" }
  # Names of rules have at most 63 characters.
  firewall_names = { for rule, name in local.long_firewall_names : rule => length(name) <= 63 ? name : "${trim(substr(name, 0, 54), "-")}-${substr(sha1(name), 0, 8)}" }
}

resource "google_compute_firewall" "server" {
  for_each      = local.server_ingress
  name          = local.firewall_names["server-${each.key}"]
  description   = each.value.what
  network       = var.network.vpc
  target_tags   = [local.server_tag]
  source_tags   = length(each.value.tags) == 0 ? null : each.value.tags
  source_ranges = length(each.value.cidrs) == 0 ? null : each.value.cidrs

  allow {
    protocol = "tcp"
    ports    = [for port in each.value.ports : tostring(port)]
  }
}

resource "google_compute_firewall" "agent" {
  for_each      = local.agent_ingress
  name          = local.firewall_names["agent-${each.key}"]
  description   = each.value.what
  network       = var.network.vpc
  target_tags   = [local.agent_tag]
  source_tags   = length(each.value.tags) == 0 ? null : each.value.tags
  source_ranges = length(each.value.cidrs) == 0 ? null : each.value.cidrs

  allow {
    protocol = each.value.protocol
    ports    = each.value.ports
  }
}
