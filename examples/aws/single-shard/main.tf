# One cluster with one shard: a VPC with private subnets, a bucket, an inexpensive server, and a group of VMs that the
# server keeps alive.

terraform {
  required_version = ">= 1.11"

  required_providers {
    aws     = { source = "hashicorp/aws", version = ">= 5.100, < 7.0" }
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }
}

# Both providers read credentials, and an endpoint other than AWS's, from the environment.
provider "aws" {
  region = var.region
}

# The bucket with the cluster's state. The module below creates it.
provider "nstance" {
  storage = module.cluster.storage
}

module "cluster" {
  source = "../../../modules/aws/cluster"

  cluster_id     = var.cluster
  bucket_name    = var.bucket
  encryption_key = { provider = var.key_provider }
  force_destroy  = var.force_destroy
  tags           = var.tags
}

module "network" {
  source = "../../../modules/aws/network"

  name     = var.cluster
  nat_mode = var.nat ? "provider" : "none"
  subnets = {
    # The subnet of the NAT gateway.
    public = { (var.zone) = [{ ipv4_cidr = "10.0.0.0/24", public = true, nat_gateway = true }] }
    # The subnet of the servers and of the leader's address. Without NAT gateways the servers need public addresses to
    # reach AWS.
    servers = { (var.zone) = [{ ipv4_cidr = "10.0.1.0/24", public = !var.nat }] }
    # The subnet of the VMs.
    workers = { (var.zone) = [{ ipv4_cidr = "10.0.16.0/20" }] }
  }
  tags = var.tags
}

module "account" {
  source = "../../../modules/aws/account"

  cluster = module.cluster.cluster
  shards  = { (var.zone) = {} }
  vpc_id  = module.network.vpc_id
  tags    = var.tags
}

module "shard" {
  source = "../../../modules/aws/shard"

  cluster = module.cluster.cluster
  account = module.account.account
  network = module.network.network
  shard   = var.zone
  zone    = var.zone

  server_count         = var.server_count
  server_instance_type = var.server_instance_type
  server_arch          = var.server_arch
  server_image         = { id = var.server_ami, owners = var.image_owners }
  server_ready_timeout = var.server_ready_timeout
  leader_network       = { ipv4 = "10.0.1.100" }
  operator_access      = { ipv4_cidrs = ["10.0.0.0/16"] }
  wait_for_leader      = var.wait_for_leader
  tags                 = var.tags

  subnet_pools = ["workers"]

  config = provider::nstance::config_merge({
    # The image of the VMs: the newest with this name. The servers look for it every few hours. A newer image applies to
    # new VMs and replaces no VM.
    images = {
      agent = {
        provider = "aws"
        owners   = var.image_owners
        filters  = [{ name = "name", values = ["nstance-agent-*"] }, { name = "architecture", values = [var.worker_arch == "amd64" ? "x86_64" : "arm64"] }]
        fallback = var.agent_ami
      }
    }

    templates = {
      worker = {
        kind        = "wrk"
        arch        = var.worker_arch
        subnet_pool = "workers"
        # Arguments of RunInstances. If agent_ami is set, it is used unchanged.
        args = { ImageId = var.agent_ami == null ? "{{ .Image.agent }}" : var.agent_ami }
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

# The settings of nstance-operator, for those who run Kubernetes on these VMs.
module "operator" {
  source = "../../../modules/kubernetes/operator"

  cluster_id         = module.cluster.cluster.id
  shards             = { (module.shard.shard.id) = module.shard.shard }
  ca_certificate_pem = module.cluster.ca_certificate_pem
}
