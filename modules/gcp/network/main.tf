# The network of the VMs: a new or an existing VPC, regional subnets, Cloud NAT, and firewall rules of the whole
# network.

locals {
  ipv6 = var.ip_family != "ipv4"

  # One object for each subnet, with the key role/region/index.
  subnets = merge([for role, regions in var.subnets : merge([for region, list in regions : {
    for place, subnet in list : "${role}/${region}/${place}" => merge(subnet, { role = role, region = region })
  }]...)]...)

  # Names have at most 63 characters.
  long_names = merge(
    { for key in keys(local.subnets) : key => "${var.name}-${replace(key, "/", "-")}" },
    { for key in keys(local.listeners) : key => "${var.name}-lb-${replace(key, "/", "-")}" },
  )
  names = { for key, name in local.long_names : key => length(name) <= 63 ? name : "${trim(substr(name, 0, 54), "-")}-${substr(sha1(name), 0, 8)}" }

  made     = { for key, subnet in local.subnets : key => subnet if subnet.existing == null }
  existing = { for key, subnet in local.subnets : key => subnet if subnet.existing != null }
  # The subnets behind the NAT gateway of each region.
  nat = { for region in toset([for subnet in values(local.made) : subnet.region]) : region => [
    for key, subnet in local.made : key if subnet.region == region && subnet.nat
  ] if var.nat_mode == "provider" && anytrue([for subnet in values(local.made) : subnet.nat if subnet.region == region]) }
  network = var.vpc.existing == null ? google_compute_network.this[0].self_link : data.google_compute_network.existing[0].self_link
}

resource "google_compute_network" "this" {
  count                   = var.vpc.existing == null ? 1 : 0
  name                    = var.name
  auto_create_subnetworks = false
  routing_mode            = "REGIONAL"
}

data "google_compute_network" "existing" {
  count = var.vpc.existing == null ? 0 : 1
  name  = var.vpc.existing
}

resource "google_compute_subnetwork" "this" {
  for_each      = local.made
  name          = local.names[each.key]
  region        = each.value.region
  network       = local.network
  ip_cidr_range = each.value.ipv4_cidr
  # This lets VMs without an external address reach Google's APIs, such as the bucket.
  private_ip_google_access = true
  stack_type               = local.ipv6 ? "IPV4_IPV6" : "IPV4_ONLY"
  ipv6_access_type         = local.ipv6 ? "EXTERNAL" : null

  # A list of objects, unlike blocks, allows an apply to remove a range. The range holds the leaders' addresses.
  secondary_ip_range = each.value.leader_ipv4_cidr == null ? [] : [{ range_name = "leader", ip_cidr_range = each.value.leader_ipv4_cidr }]
}

data "google_compute_subnetwork" "existing" {
  for_each = local.existing
  name     = each.value.existing
  region   = each.value.region
}

resource "google_compute_router" "this" {
  for_each = local.nat
  name     = "${var.name}-${each.key}"
  region   = each.key
  network  = local.network
}

resource "google_compute_router_nat" "this" {
  for_each                           = local.nat
  name                               = "${var.name}-${each.key}"
  router                             = google_compute_router.this[each.key].name
  region                             = each.key
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "LIST_OF_SUBNETWORKS"

  dynamic "subnetwork" {
    for_each = each.value

    content {
      name                    = google_compute_subnetwork.this[subnetwork.value].self_link
      source_ip_ranges_to_nat = ["ALL_IP_RANGES"]
    }
  }
}

# Google's health checks, of server groups and load balancers, come from these networks.
# https://cloud.google.com/load-balancing/docs/health-check-concepts#ip-ranges
resource "google_compute_firewall" "health_checks" {
  name          = "${var.name}-health-checks"
  description   = "Google's health checks"
  network       = local.network
  source_ranges = ["35.191.0.0/16", "130.211.0.0/22"]

  allow {
    protocol = "tcp"
    ports    = [for port in sort(distinct(concat(["8990"], [for l in values(local.listeners) : tostring(l.health_port)]))) : port]
  }
}

resource "google_compute_firewall" "iap" {
  count         = var.iap_ssh ? 1 : 0
  name          = "${var.name}-iap"
  description   = "SSH through Identity-Aware Proxy"
  network       = local.network
  source_ranges = ["35.235.240.0/20"]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

locals {
  links = merge({ for key, subnet in google_compute_subnetwork.this : key => subnet.self_link }, { for key, subnet in data.google_compute_subnetwork.existing : key => subnet.self_link })
}
