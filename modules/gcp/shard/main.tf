# One shard: its servers, the leader's address, and its configuration.

data "google_client_config" "this" {}

locals {
  project = data.google_client_config.this.project
  region  = regex("^(.+)-[a-z]$", var.zone)[0]
  name    = "${var.cluster.id}-${var.shard}"
  labels  = merge({ nstance-cluster = var.cluster.id }, var.labels)

  # The subnets of the region that the shard may use, by role.
  subnets = { for role, regions in var.network.subnets : role => [
    for s in lookup(regions, local.region, []) : s if s.shards == null ? true : contains(s.shards, var.shard)
  ] }
  server_subnet = local.subnets[var.server_subnets][0]
  pools = { for role, list in local.subnets : role => [for s in list : s.link]
  if length(list) > 0 && (var.subnet_pools == null ? true : contains(var.subnet_pools, role)) }

  # The leader's address: an alias of the servers' subnet, or that of a load balancer.
  kind        = coalesce(var.leader_network.kind, var.server_count == 2 ? "load_balancer" : "alias")
  balanced    = local.kind == "load_balancer"
  leader_ipv4 = local.balanced ? google_compute_address.leader[0].address : coalesce(var.leader_network.ipv4, try(cidrhost(local.server_subnet.leader_ipv4_cidr, 1), null), "-")
  leader_host = var.leader_dns == null ? local.leader_ipv4 : trimsuffix(google_dns_record_set.leader[0].name, ".")
}

# Agents find the leader by this name after a change of its address.
resource "google_dns_record_set" "leader" {
  count        = var.leader_dns == null ? 0 : 1
  managed_zone = var.leader_dns.managed_zone
  name         = "${var.leader_dns.name}."
  type         = "A"
  ttl          = var.leader_dns.ttl
  rrdatas      = [local.leader_ipv4]
}

data "nstance_userdata" "agent" {
  role            = "agent"
  binaries        = length(var.agent_binaries) == 0 ? null : var.agent_binaries
  environment     = length(var.agent_environment) == 0 ? null : var.agent_environment
  commands_before = length(var.agent_commands) == 0 ? null : var.agent_commands
}

locals {
  # Where the cluster's own objects, secrets and encryption key are: in this cloud, or in another one.
  home = var.cluster.primary != null ? var.cluster.primary : {
    id             = var.cluster.id
    storage        = { provider = "gcs", bucket = var.cluster.bucket, prefix = var.cluster.prefix, region = null, endpoint = null }
    secrets        = { provider = var.cluster.secrets.provider, prefix = var.cluster.secrets.prefix == "" ? null : var.cluster.secrets.prefix, project_id = var.cluster.secrets.project_id }
    encryption_key = var.cluster.encryption_key
  }
}

resource "nstance_shard" "this" {
  # This resource is destroyed first. Its destruction waits until the leader has deleted all VMs of the shard. Until
  # then the servers need their VMs, their permissions and their routes.
  depends_on = [
    google_compute_instance_group_manager.server,
    google_compute_forwarding_rule.leader,
    google_compute_firewall.server,
    google_compute_firewall.agent,
  ]

  wait_for_leader = var.wait_for_leader && var.server_count > 0
  timeouts        = { delete = var.destroy_timeout }

  deletion_protection = var.deletion_protection
  force_destroy       = var.force_destroy

  config = provider::nstance::config_merge({
    cluster = {
      id      = var.cluster.id
      storage = var.cluster.primary == null ? null : merge(var.cluster.primary.storage, { identity = var.identity })
      secrets = merge(local.home.secrets, { encryption_key = local.home.encryption_key })
    }
    server = {
      shard    = var.shard
      provider = { kind = "gcp", region = local.region, zone = var.zone, options = { project = local.project } }
      leader_network = {
        ipv4            = local.leader_ipv4
        dns_name        = var.leader_dns == null ? null : var.leader_dns.name
        kind            = local.kind
        secondary_range = local.balanced ? null : "leader"
      }
      subnet_pools = local.pools
    }
    load_balancers = { for name, lb in local.balancers : name => {
      provider              = "gcp"
      instance_group_name   = lb.instance_groups[var.zone]
      backend_service_names = length(lb.backend_services) == 0 ? null : lb.backend_services
    } }
    defaults = { args = local.agent_args, userdata = { content = data.nstance_userdata.agent.content } }
  }, var.config)
}

# An apply that rolls the servers fails if the new servers do not become healthy, or if Google creates no machine.
resource "nstance_servers_ready" "this" {
  count      = var.wait_for_leader && var.server_count > 0 ? 1 : 0
  depends_on = [nstance_shard.this]

  shard      = var.shard
  generation = google_compute_region_instance_template.server.name
  timeout    = "${var.server_ready_timeout + 300}s"

  machine_group = {
    kind    = "gcp"
    project = local.project
    zone    = var.zone
    name    = google_compute_instance_group_manager.server.name
  }
}

locals {
  # The network's load balancers that have an instance group in the shard's zone.
  balancers = { for name, lb in var.network.load_balancers : name => lb if contains(keys(lb.instance_groups), var.zone) }

  # Default arguments of instances.insert, which templates can override.
  agent_args = merge(
    { tags = { items = [local.agent_tag] } },
    { for key in ["serviceAccounts"] : key => [{ email = var.account.agent_service_account, scopes = ["https://www.googleapis.com/auth/cloud-platform"] }]
    if var.account.agent_service_account != null },
    { for key in ["networkInterfaces"] : key => [{ stackType = "IPV4_IPV6" }] if var.network.ip_family == "dualstack" },
  )
}
