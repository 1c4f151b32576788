# The servers: a managed instance group that can replace each of them at any time.

data "google_compute_image" "server" {
  count   = var.server_image.id == null ? 1 : 0
  family  = var.server_image.family
  project = var.server_image.project
}

data "nstance_userdata" "server" {
  role            = "server"
  shard           = var.shard
  storage         = "gcs"
  bucket          = var.cluster.bucket
  prefix          = var.cluster.prefix == "" ? null : var.cluster.prefix
  extra_args      = length(var.server_args) == 0 ? null : var.server_args
  binaries        = length(var.server_binaries) == 0 ? null : var.server_binaries
  commands_before = length(var.server_commands) == 0 ? null : var.server_commands
  environment     = merge({ GOOGLE_CLOUD_PROJECT = local.project }, var.server_environment)
}

resource "google_compute_region_instance_template" "server" {
  # The prefix has at most 37 characters, so that a unique suffix fits.
  name_prefix    = "${trim(substr(local.name, 0, 34), "-")}-"
  region         = local.region
  description    = "Servers of the Nstance shard ${var.cluster.id}/${var.shard}"
  machine_type   = var.server_instance_type
  tags           = concat([local.server_tag], var.server_tags)
  labels         = merge(local.labels, { nstance-server = var.shard })
  can_ip_forward = false

  metadata = {
    startup-script         = data.nstance_userdata.server.content
    block-project-ssh-keys = "true"
    enable-oslogin         = "TRUE"
  }

  disk {
    boot         = true
    auto_delete  = true
    source_image = var.server_image.id == null ? data.google_compute_image.server[0].self_link : var.server_image.id
    disk_size_gb = var.server_volume.size
    disk_type    = var.server_volume.type

    dynamic "disk_encryption_key" {
      for_each = var.server_volume.kms_key_name == null ? [] : [var.server_volume.kms_key_name]

      content {
        kms_key_self_link = disk_encryption_key.value
      }
    }
  }

  network_interface {
    subnetwork = local.server_subnet.link
    stack_type = var.network.ip_family == "dualstack" ? "IPV4_IPV6" : "IPV4_ONLY"
  }

  service_account {
    email  = var.account.servers[var.shard].email
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = local.balanced || local.server_subnet.leader_ipv4_cidr != null
      error_message = "The first of the servers' subnets has no range for leader addresses: set its leader_ipv4_cidr in the module network, or leader_network.kind = \"load_balancer\"."
    }
    precondition {
      condition     = local.balanced || var.leader_network.ipv4 == null ? true : try(cidrhost("${var.leader_network.ipv4}/${split("/", local.server_subnet.leader_ipv4_cidr)[1]}", 0) == cidrhost(local.server_subnet.leader_ipv4_cidr, 0), false)
      error_message = "leader_network.ipv4 (${coalesce(var.leader_network.ipv4, "-")}) is not in the range for leader addresses, ${coalesce(local.server_subnet.leader_ipv4_cidr, "-")}."
    }
  }
}

resource "google_compute_health_check" "server" {
  name                = "${local.name}-server"
  description         = "Servers of the Nstance shard ${var.cluster.id}/${var.shard}"
  check_interval_sec  = 10
  timeout_sec         = 6
  healthy_threshold   = 2
  unhealthy_threshold = 3

  http_health_check {
    port         = local.ports.health
    request_path = "/health"
  }
}

resource "google_compute_instance_group_manager" "server" {
  # A new server needs its permissions and the network's rules immediately.
  depends_on = [google_compute_firewall.server]

  name               = "${local.name}-server"
  zone               = var.zone
  base_instance_name = "${local.name}-server"
  target_size        = var.server_count

  version {
    instance_template = google_compute_region_instance_template.server.self_link
  }

  auto_healing_policies {
    health_check      = google_compute_health_check.server.self_link
    initial_delay_sec = var.server_ready_timeout
  }

  # A change rolls the servers. An old server is deleted only after a new one is healthy.
  update_policy {
    type                  = "PROACTIVE"
    minimal_action        = "REPLACE"
    replacement_method    = "SUBSTITUTE"
    max_surge_fixed       = 1
    max_unavailable_fixed = 0
  }
}

# The leader's address, if it belongs to a load balancer. The load balancer's health check finds the leader, so a
# failover needs no API call.
resource "google_compute_address" "leader" {
  count        = local.balanced ? 1 : 0
  name         = "${local.name}-leader"
  region       = local.region
  address_type = "INTERNAL"
  subnetwork   = local.server_subnet.link
  address      = var.leader_network.ipv4
}

resource "google_compute_region_health_check" "leader" {
  count               = local.balanced ? 1 : 0
  name                = "${local.name}-leader"
  region              = local.region
  check_interval_sec  = 1
  timeout_sec         = 1
  healthy_threshold   = 1
  unhealthy_threshold = 2

  http_health_check {
    port         = local.ports.health
    request_path = "/leader"
  }
}

resource "google_compute_region_backend_service" "leader" {
  count                           = local.balanced ? 1 : 0
  name                            = "${local.name}-leader"
  region                          = local.region
  protocol                        = "TCP"
  load_balancing_scheme           = "INTERNAL"
  health_checks                   = [google_compute_region_health_check.leader[0].self_link]
  connection_draining_timeout_sec = 0

  backend {
    group          = google_compute_instance_group_manager.server.instance_group
    balancing_mode = "CONNECTION"
  }
}

resource "google_compute_forwarding_rule" "leader" {
  count                 = local.balanced ? 1 : 0
  name                  = "${local.name}-leader"
  region                = local.region
  load_balancing_scheme = "INTERNAL"
  ip_protocol           = "TCP"
  ip_address            = google_compute_address.leader[0].self_link
  ports                 = [for port in [local.ports.health, local.ports.registration, local.ports.operator, local.ports.agent] : tostring(port)]
  backend_service       = google_compute_region_backend_service.leader[0].self_link
  network               = var.network.vpc
  subnetwork            = local.server_subnet.link
  allow_global_access   = true
}
