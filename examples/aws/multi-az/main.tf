# One cluster with a shard in each of three zones. A network load balancer is in front of a group of web servers in all
# zones.

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

locals {
  subnets = {
    # The subnets of the load balancer and the NAT gateways.
    public = { for zone, i in var.zones : zone => [{
      ipv4_cidr   = cidrsubnet("10.0.0.0/16", 8, i)
      public      = true
      nat_gateway = var.nat == "each" || i == min(values(var.zones)...)
    }] }
    # The subnets of the servers and of the leaders' addresses. Without NAT gateways the servers need public addresses
    # to reach AWS.
    servers = { for zone, i in var.zones : zone => [{ ipv4_cidr = cidrsubnet("10.0.0.0/16", 8, 8 + i), public = var.nat == "none" }] }
    # The subnets of the VMs.
    web = { for zone, i in var.zones : zone => [{ ipv4_cidr = cidrsubnet("10.0.0.0/16", 4, 1 + i) }] }
  }
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
  nat_mode = var.nat == "none" ? "none" : "provider"
  subnets  = local.subnets
  load_balancers = {
    web = { listeners = { http = { port = 80, target_port = var.web_port, health_check = var.web_health_check } } }
  }
  tags = var.tags
}

# A role for the servers of each shard.
module "account" {
  source = "../../../modules/aws/account"

  cluster           = module.cluster.cluster
  shards            = { for zone in keys(var.zones) : zone => {} }
  vpc_id            = module.network.vpc_id
  target_group_arns = module.network.target_group_arns
  tags              = var.tags

  load_balancer_health = true
}

# A shard for each zone. They share only the bucket and the CA, so that each continues to work if another fails.
module "shard" {
  source   = "../../../modules/aws/shard"
  for_each = var.zones

  cluster = module.cluster.cluster
  account = module.account.account
  network = module.network.network
  shard   = each.key
  zone    = each.key

  server_count         = var.server_count
  server_instance_type = var.server_instance_type
  server_arch          = var.server_arch
  server_image         = { id = var.server_ami, owners = var.image_owners }
  leader_network       = { ipv4 = cidrhost(cidrsubnet("10.0.0.0/16", 8, 8 + each.value), 100) }
  # Operators may connect to the leaders from anywhere in the VPC.
  operator_access = { ipv4_cidrs = ["10.0.0.0/16"] }
  wait_for_leader = var.wait_for_leader
  tags            = var.tags

  subnet_pools   = ["web"]
  agent_commands = var.web_commands

  config = provider::nstance::config_merge({
    images = {
      agent = {
        provider = "aws"
        owners   = var.image_owners
        filters  = [{ name = "name", values = ["nstance-agent-*"] }, { name = "architecture", values = [var.web_arch == "amd64" ? "x86_64" : "arm64"] }]
        fallback = var.agent_ami
      }
    }

    templates = {
      web = {
        kind        = "web"
        arch        = var.web_arch
        subnet_pool = "web"
        # Arguments of RunInstances. If agent_ami is set, it is used unchanged.
        args = { ImageId = var.agent_ami == null ? "{{ .Image.agent }}" : var.agent_ami }
        # A VM that the load balancer calls unhealthy is replaced.
        load_balancer_health = true
      }
    }

    groups = {
      default = {
        web = {
          template       = "web"
          size           = var.web_count
          instance_type  = var.web_instance_types[0]
          instance_types = slice(var.web_instance_types, 1, length(var.web_instance_types))
          args           = var.web_args
          load_balancers = ["web"]
        }
      }
    }
  }, var.config)
}

# The settings of nstance-operator, for those who run Kubernetes on these VMs.
module "operator" {
  source = "../../../modules/kubernetes/operator"

  cluster_id         = module.cluster.cluster.id
  shards             = { for name, shard in module.shard : name => shard.shard }
  ca_certificate_pem = module.cluster.ca_certificate_pem
}
