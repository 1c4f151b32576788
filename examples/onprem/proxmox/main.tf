# One cluster with one shard on a cluster of Proxmox VE, in a bucket of your own object store.

terraform {
  required_version = ">= 1.11"

  required_providers {
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }
}

# The provider reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and NSTANCE_ENCRYPTION_KEY from the environment.
provider "nstance" {
  storage = {
    provider   = "s3"
    bucket     = var.bucket
    region     = "us-east-1"
    endpoint   = var.endpoint
    path_style = true
  }
  encryption_key = { provider = "env", source = "NSTANCE_ENCRYPTION_KEY" }
}

# The CA, and the key that signs registration nonces.
resource "nstance_cluster" "this" {
  id = var.cluster
}

module "shard" {
  source = "../../../modules/onprem/shard"

  cluster        = { id = nstance_cluster.this.id }
  shard          = "rack-1"
  bucket         = { endpoint = var.endpoint, name = var.bucket }
  leader_network = { ipv4 = var.leader_ipv4 }

  config = {
    server = {
      provider = { kind = "proxmox", options = {
        endpoints = "https://pve1.example.com:8006,https://pve2.example.com:8006"
        ca_file   = "/etc/nstance/pve-root-ca.pem"
      } }
      subnet_pools = { vms = ["pve1/vmbr0", "pve2/vmbr0"] }
    }
    templates = {
      worker = {
        kind          = "wrk"
        arch          = "amd64"
        instance_type = "2x4096"
        subnet_pool   = "vms"
        args          = { template = var.image }
      }
    }
    groups = { default = { workers = { template = "worker", size = var.size } } }
  }
}
