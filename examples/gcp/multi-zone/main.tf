# One cluster with a shard in each of several zones, each with a hot standby, and one load balancer in front of the VMs
# of all zones.

terraform {
  required_version = ">= 1.11"

  required_providers {
    google  = { source = "hashicorp/google", version = ">= 5.39, < 8.0" }
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }
}

# Both providers read credentials, and endpoints other than Google's, from the environment.
provider "google" {
  project = var.project
  region  = var.region
}

# The bucket with the cluster's state. The module below creates it.
provider "nstance" {
  storage = module.cluster.storage
}

module "cluster" {
  source = "../../../modules/gcp/cluster"

  cluster_id     = var.cluster
  bucket_name    = var.bucket
  secrets        = { provider = var.encryption_key == null ? "google-secret-manager" : "object-storage" }
  encryption_key = var.encryption_key == null ? null : { source = var.encryption_key }
  force_destroy  = var.force_destroy
  labels         = var.labels
}

module "network" {
  source = "../../../modules/gcp/network"

  name = var.cluster
  subnets = {
    # Subnets are regional: those of all zones are the same.
    servers = { (var.region) = [{ ipv4_cidr = "10.0.1.0/24" }] }
    workers = { (var.region) = [{ ipv4_cidr = "10.0.16.0/20" }] }
  }
  load_balancers = {
    web = {
      zones            = sort(keys(var.zones))
      allow_ipv4_cidrs = var.allow_ipv4_cidrs
      listeners        = { http = { port = 8080, health_check = { path = "/" } } }
    }
  }
}

module "account" {
  source = "../../../modules/gcp/account"

  cluster        = module.cluster.cluster
  shards         = { for zone in keys(var.zones) : zone => {} }
  load_balancers = true
}

module "shard" {
  source   = "../../../modules/gcp/shard"
  for_each = var.zones

  cluster = module.cluster.cluster
  account = module.account.account
  network = module.network.network
  shard   = each.key
  zone    = each.key

  server_count         = var.server_count
  server_instance_type = var.server_instance_type
  server_image         = { id = var.server_image, project = var.image_project }
  server_ready_timeout = var.server_ready_timeout
  leader_network       = { kind = "load_balancer", ipv4 = "10.0.1.${100 + each.value}" }
  operator_access      = { ipv4_cidrs = ["10.0.0.0/16"] }
  wait_for_leader      = var.wait_for_leader
  labels               = var.labels

  subnet_pools   = ["workers"]
  agent_commands = var.worker_commands

  config = provider::nstance::config_merge({
    # The image of the VMs: the newest with this name. The servers look for it every few hours. A newer image applies to
    # new VMs and replaces no VM.
    images = {
      agent = {
        provider = "gcp"
        owners   = [coalesce(var.image_project, "self")]
        filters  = [{ name = "name", values = ["nstance-agent-amd64-*"] }]
        fallback = var.agent_image
      }
    }

    templates = {
      worker = {
        kind        = "wrk"
        arch        = "amd64"
        subnet_pool = "workers"
        # The body of instances.insert. If agent_image is set, it is used unchanged.
        args = { disks = [{
          boot             = true
          autoDelete       = true
          initializeParams = { sourceImage = var.agent_image == null ? "{{ .Image.agent }}" : var.agent_image }
        }] }
        vars                 = var.worker_vars
        load_balancer_health = var.load_balancer_health
        files = {
          "app.env" = { kind = "env", vars = { INSTANCE_ID = "{{ .Instance.ID }}", GREETING = "{{ .Vars.greeting }}" } }
        }
      }
    }

    groups = {
      default = {
        workers = {
          template       = "worker"
          size           = var.worker_count
          instance_type  = var.worker_instance_types[0]
          instance_types = slice(var.worker_instance_types, 1, length(var.worker_instance_types))
          args           = var.worker_args
          load_balancers = ["web"]
        }
      }
    }
  }, var.config)
}
