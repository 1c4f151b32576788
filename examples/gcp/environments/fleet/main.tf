# The fleet of one environment: a bucket, a network, and a shard for each zone with a group of VMs. Each environment
# calls this module with its own values.

terraform {
  required_version = ">= 1.11"

  required_providers {
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }
}

locals {
  # The prefix of all names, so that environments can share a project.
  name   = "example-${var.environment}"
  labels = { environment = var.environment }
  # Subnets are regional: those of all zones are the same.
  servers = cidrsubnet(var.ipv4_cidr, 8, 1)
  leaders = cidrsubnet(var.ipv4_cidr, 12, 32)
  workers = cidrsubnet(var.ipv4_cidr, 4, 1)
}

module "cluster" {
  source = "../../../../modules/gcp/cluster"

  cluster_id    = local.name
  secrets       = { provider = "google-secret-manager" }
  force_destroy = !var.deletion_protection
  labels        = local.labels
}

module "network" {
  source = "../../../../modules/gcp/network"

  name = local.name
  subnets = {
    # The servers' subnet. Its secondary range holds the alias addresses of the leaders.
    servers = { (var.region) = [{ ipv4_cidr = local.servers, leader_ipv4_cidr = local.leaders }] }
    # The VMs' subnet.
    workers = { (var.region) = [{ ipv4_cidr = local.workers }] }
  }
}

module "account" {
  source = "../../../../modules/gcp/account"

  cluster = module.cluster.cluster
  shards  = { for zone in keys(var.zones) : zone => {} }
}

module "shard" {
  source   = "../../../../modules/gcp/shard"
  for_each = var.zones

  cluster = module.cluster.cluster
  account = module.account.account
  network = module.network.network
  shard   = each.key
  zone    = each.key

  server_count         = var.server_count
  server_instance_type = var.server_instance_type
  server_image         = { id = var.images.server }
  # With two servers, the leader's address is that of a load balancer. With one, it is an alias address.
  leader_network      = { ipv4 = var.server_count == 2 ? cidrhost(local.servers, 100 + each.value) : cidrhost(local.leaders, 1 + each.value) }
  operator_access     = { ipv4_cidrs = [var.ipv4_cidr] }
  wait_for_leader     = true
  deletion_protection = var.deletion_protection
  labels              = local.labels

  subnet_pools = ["workers"]

  config = provider::nstance::config_merge({
    templates = {
      worker = {
        kind        = "wrk"
        arch        = "amd64"
        subnet_pool = "workers"
        args = {
          disks  = [{ boot = true, initializeParams = { sourceImage = var.images.agent } }]
          labels = local.labels
        }
      }
    }

    groups = {
      default = {
        workers = {
          template       = "worker"
          size           = var.workers_per_zone
          instance_type  = var.worker_instance_types[0]
          instance_types = slice(var.worker_instance_types, 1, length(var.worker_instance_types))
        }
      }
    }
  }, var.config)
}
