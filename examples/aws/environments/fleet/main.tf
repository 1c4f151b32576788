# The fleet of one environment: a bucket, a network, and a shard for each zone with a group of VMs. Each environment
# calls this module with its own values.

terraform {
  required_version = ">= 1.11"

  required_providers {
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }
}

locals {
  # The prefix of all names, so that environments can share an account.
  name = "example-${var.environment}"
  tags = { environment = var.environment }
}

module "cluster" {
  source = "../../../../modules/aws/cluster"

  cluster_id          = local.name
  encryption_key      = { provider = var.key_provider }
  deletion_protection = var.deletion_protection
  force_destroy       = !var.deletion_protection
  tags                = local.tags
}

module "network" {
  source = "../../../../modules/aws/network"

  name = local.name
  vpc  = { ipv4_cidr = var.ipv4_cidr }
  subnets = {
    # The subnets of the NAT gateways.
    public = { for zone, i in var.zones : zone => [{ ipv4_cidr = cidrsubnet(var.ipv4_cidr, 8, i), public = true, nat_gateway = true }] }
    # The subnets of the servers and of the leaders' addresses.
    servers = { for zone, i in var.zones : zone => [{ ipv4_cidr = cidrsubnet(var.ipv4_cidr, 8, 8 + i) }] }
    # The subnets of the VMs.
    workers = { for zone, i in var.zones : zone => [{ ipv4_cidr = cidrsubnet(var.ipv4_cidr, 4, 1 + i) }] }
  }
  tags = local.tags
}

module "account" {
  source = "../../../../modules/aws/account"

  cluster = module.cluster.cluster
  shards  = { for zone in keys(var.zones) : zone => {} }
  vpc_id  = module.network.vpc_id
  tags    = local.tags
}

module "shard" {
  source   = "../../../../modules/aws/shard"
  for_each = var.zones

  cluster = module.cluster.cluster
  account = module.account.account
  network = module.network.network
  shard   = each.key
  zone    = each.key

  server_count         = var.server_count
  server_instance_type = var.server_instance_type
  server_arch          = var.arch
  server_image         = { id = var.images.server }
  leader_network       = { ipv4 = cidrhost(cidrsubnet(var.ipv4_cidr, 8, 8 + each.value), 100) }
  operator_access      = { ipv4_cidrs = [var.ipv4_cidr] }
  wait_for_leader      = true
  tags                 = local.tags

  subnet_pools = ["workers"]

  config = provider::nstance::config_merge({
    templates = {
      worker = {
        kind        = "wrk"
        arch        = var.arch
        subnet_pool = "workers"
        args        = { ImageId = var.images.agent }
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
