# Passthrough network load balancers. Each has an address, a zonal instance group in each of its zones, to which servers
# add VMs, and for each listener a health check, a backend service and a forwarding rule.

locals {
  listeners = merge([for name, lb in var.load_balancers : {
    for key, listener in lb.listeners : "${name}/${key}" => merge(listener, {
      balancer    = name
      health_port = coalesce(listener.health_check.port, listener.port)
    })
  }]...)
  instance_groups = merge([for name, lb in var.load_balancers : {
    for zone in lb.zones : "${name}/${zone}" => { balancer = name, zone = zone }
  }]...)
  regions = { for name, lb in var.load_balancers : name => regex("^(.+)-[a-z]$", lb.zones[0])[0] }
  # Permitted clients. A passthrough load balancer keeps the client's address.
  balancer_sources = { for name, lb in var.load_balancers : name => (
    lb.allow_ipv4_cidrs != null ? lb.allow_ipv4_cidrs : lb.internal ? ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"] : ["0.0.0.0/0"]
  ) }
}

resource "google_compute_address" "balancer" {
  for_each     = var.load_balancers
  name         = "${var.name}-lb-${each.key}"
  region       = local.regions[each.key]
  address_type = each.value.internal ? "INTERNAL" : "EXTERNAL"
  purpose      = each.value.internal ? "SHARED_LOADBALANCER_VIP" : null
  subnetwork   = each.value.internal ? local.links["${each.value.subnets}/${local.regions[each.key]}/0"] : null
}

resource "google_compute_instance_group" "balancer" {
  for_each  = local.instance_groups
  name      = "${var.name}-lb-${each.value.balancer}"
  zone      = each.value.zone
  network   = local.network
  instances = null

  # Servers add and remove the VMs.
  lifecycle {
    ignore_changes = [instances]
  }
}

resource "google_compute_region_health_check" "balancer" {
  for_each            = local.listeners
  name                = local.names[each.key]
  region              = local.regions[each.value.balancer]
  check_interval_sec  = each.value.health_check.interval
  timeout_sec         = min(5, each.value.health_check.interval)
  healthy_threshold   = each.value.health_check.healthy_threshold
  unhealthy_threshold = each.value.health_check.unhealthy_threshold

  dynamic "http_health_check" {
    for_each = each.value.health_check.path == null ? [] : [each.value.health_check.path]

    content {
      port         = each.value.health_port
      request_path = http_health_check.value
    }
  }

  dynamic "tcp_health_check" {
    for_each = each.value.health_check.path == null ? [each.value.health_port] : []

    content {
      port = tcp_health_check.value
    }
  }
}

resource "google_compute_region_backend_service" "balancer" {
  for_each                        = local.listeners
  name                            = local.names[each.key]
  region                          = local.regions[each.value.balancer]
  protocol                        = each.value.protocol
  load_balancing_scheme           = var.load_balancers[each.value.balancer].internal ? "INTERNAL" : "EXTERNAL"
  health_checks                   = [google_compute_region_health_check.balancer[each.key].self_link]
  connection_draining_timeout_sec = each.value.deregistration_delay

  dynamic "backend" {
    for_each = { for key, group in local.instance_groups : key => google_compute_instance_group.balancer[key].self_link if group.balancer == each.value.balancer }

    content {
      group          = backend.value
      balancing_mode = "CONNECTION"
    }
  }
}

resource "google_compute_forwarding_rule" "balancer" {
  for_each              = local.listeners
  name                  = local.names[each.key]
  region                = local.regions[each.value.balancer]
  load_balancing_scheme = var.load_balancers[each.value.balancer].internal ? "INTERNAL" : "EXTERNAL"
  ip_protocol           = each.value.protocol
  ip_address            = google_compute_address.balancer[each.value.balancer].self_link
  ports                 = var.load_balancers[each.value.balancer].internal ? [tostring(each.value.port)] : null
  port_range            = var.load_balancers[each.value.balancer].internal ? null : tostring(each.value.port)
  backend_service       = google_compute_region_backend_service.balancer[each.key].self_link
  network               = var.load_balancers[each.value.balancer].internal ? local.network : null
  subnetwork            = var.load_balancers[each.value.balancer].internal ? local.links["${var.load_balancers[each.value.balancer].subnets}/${local.regions[each.value.balancer]}/0"] : null
}
