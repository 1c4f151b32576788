# One cluster with one shard: a VPC with private subnets, a bucket, an inexpensive server, and a group of VMs that the
# server keeps alive.

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

  name     = var.cluster
  nat_mode = var.nat ? "provider" : "none"
  subnets = {
    # The servers' subnet. Its secondary range holds the leader's address.
    servers = { (var.region) = [{ ipv4_cidr = "10.0.1.0/24", leader_ipv4_cidr = "10.0.2.0/28" }] }
    # The VMs' subnet.
    workers = { (var.region) = [{ ipv4_cidr = "10.0.16.0/20" }] }
  }
}

module "account" {
  source = "../../../modules/gcp/account"

  cluster = module.cluster.cluster
  shards  = { (var.zone) = {} }
}

module "shard" {
  source = "../../../modules/gcp/shard"

  cluster = module.cluster.cluster
  account = module.account.account
  network = module.network.network
  shard   = var.zone
  zone    = var.zone

  server_count         = var.server_count
  server_instance_type = var.server_instance_type
  server_image         = { id = var.server_image, project = var.image_project }
  server_ready_timeout = var.server_ready_timeout
  leader_network       = { kind = var.leader_kind }
  operator_access      = { ipv4_cidrs = ["10.0.0.0/16"] }
  wait_for_leader      = var.wait_for_leader
  labels               = var.labels

  subnet_pools = ["workers"]

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
        vars = var.worker_vars
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
        }
      }
    }
  }, var.config)
}
