# One cluster over two clouds: a shard on AWS and a shard on Google Cloud, with one CA and one operator. The cluster's
# bucket and its encryption key are on AWS. Each shard also has a bucket in its own cloud, for its own state.

terraform {
  required_version = ">= 1.11"

  required_providers {
    aws     = { source = "hashicorp/aws", version = ">= 5.100, < 7.0" }
    google  = { source = "hashicorp/google", version = ">= 5.39, < 8.0" }
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }
}

# The providers read credentials from the environment.
provider "aws" {
  region = local.aws_region
}

provider "google" {
  project = var.google_project
  region  = local.google_region
}

# The cluster's bucket, which is also that of the shard on AWS.
provider "nstance" {
  storage = module.cluster.storage
}

# The bucket of the shard on Google Cloud.
provider "nstance" {
  alias   = "google"
  storage = module.google_cluster.storage
}

locals {
  aws_region    = regex("^(.+[0-9])[a-z]$", var.aws_zone)[0]
  google_region = regex("^(.+)-[a-z]$", var.google_zone)[0]

  # What is the same on both clouds. The subnet pool "workers" has the subnets of each cloud, and each cloud adds its
  # instance type and image.
  worker = {
    kind        = "wrk"
    arch        = "amd64"
    subnet_pool = "workers"
    files = {
      "app.env" = { kind = "env", vars = { INSTANCE_ID = "{{ .Instance.ID }}", SHARD = "{{ .Server.Shard }}" } }
    }
  }
}

# --- AWS ---

module "cluster" {
  source = "../../modules/aws/cluster"

  cluster_id    = var.cluster
  force_destroy = var.force_destroy
}

module "aws_network" {
  source = "../../modules/aws/network"

  name     = var.cluster
  nat_mode = "provider"
  subnets = {
    public  = { (var.aws_zone) = [{ ipv4_cidr = "10.0.0.0/24", public = true, nat_gateway = true }] }
    servers = { (var.aws_zone) = [{ ipv4_cidr = "10.0.1.0/24" }] }
    workers = { (var.aws_zone) = [{ ipv4_cidr = "10.0.16.0/20" }] }
  }
}

module "aws_account" {
  source = "../../modules/aws/account"

  cluster = module.cluster.cluster
  shards  = { (var.aws_zone) = {} }
  vpc_id  = module.aws_network.vpc_id
}

module "aws_shard" {
  source = "../../modules/aws/shard"

  cluster = module.cluster.cluster
  account = module.aws_account.account
  network = module.aws_network.network
  shard   = var.aws_zone
  zone    = var.aws_zone

  server_arch          = "amd64"
  server_instance_type = "t3.nano"
  server_image         = { id = var.aws_server_image, owners = var.aws_image_owners }
  server_ready_timeout = var.server_ready_timeout
  leader_network       = { ipv4 = "10.0.1.100" }
  operator_access      = { ipv4_cidrs = var.operator_cidrs }

  subnet_pools = ["workers"]

  config = provider::nstance::config_merge({
    templates = { worker = merge(local.worker, { instance_type = "t3.small", args = { ImageId = var.aws_worker_image } }) }
    groups    = { default = { workers = { template = "worker", size = var.worker_count } } }
  }, var.config)
}

# --- Google Cloud ---

# The bucket of the shard. The CA and the secrets stay in the cluster's bucket.
module "google_cluster" {
  source    = "../../modules/gcp/cluster"
  providers = { google = google, nstance = nstance.google }

  cluster_id    = var.cluster
  primary       = module.cluster.primary
  force_destroy = var.force_destroy
}

module "google_network" {
  source = "../../modules/gcp/network"

  name     = var.cluster
  nat_mode = "provider"
  subnets = {
    servers = { (local.google_region) = [{ ipv4_cidr = "10.1.1.0/24", leader_ipv4_cidr = "10.1.2.0/28" }] }
    workers = { (local.google_region) = [{ ipv4_cidr = "10.1.16.0/20" }] }
  }
}

module "google_account" {
  source = "../../modules/gcp/account"

  cluster = module.google_cluster.cluster
  shards  = { (var.google_zone) = {} }
}

# The role that the servers on Google Cloud assume on AWS.
module "federation" {
  source = "../../modules/aws/federation"

  cluster = module.cluster.cluster
  shards  = { for shard, server in module.google_account.account.servers : shard => { service_account_id = server.unique_id } }
}

module "google_shard" {
  source    = "../../modules/gcp/shard"
  providers = { google = google, nstance = nstance.google }

  cluster  = module.google_cluster.cluster
  identity = module.federation.identities[var.google_zone]
  account  = module.google_account.account
  network  = module.google_network.network
  shard    = var.google_zone
  zone     = var.google_zone

  server_instance_type = "e2-micro"
  server_image         = { id = var.google_server_image, project = var.google_image_project }
  server_ready_timeout = var.server_ready_timeout
  operator_access      = { ipv4_cidrs = var.operator_cidrs }

  subnet_pools = ["workers"]

  config = provider::nstance::config_merge({
    templates = { worker = merge(local.worker, { instance_type = "e2-small", args = {
      disks = [{ boot = true, autoDelete = true, initializeParams = { sourceImage = var.google_worker_image } }]
    } }) }
    groups = { default = { workers = { template = "worker", size = var.worker_count } } }
  }, var.config)
}

# --- Both ---

locals {
  shards = { for shard in [module.aws_shard.shard, module.google_shard.shard] : shard.id => shard }
}

# The settings of one nstance-operator for both shards.
module "operator" {
  source = "../../modules/kubernetes/operator"

  cluster_id         = module.cluster.cluster.id
  shards             = local.shards
  ca_certificate_pem = module.cluster.ca_certificate_pem
}

# One context of nstance-admin for both shards.
data "nstance_admin_context" "this" {
  name           = var.cluster
  servers        = { for id, shard in local.shards : id => shard.operator_addr }
  storage        = module.cluster.primary.storage
  shard_storage  = { (var.google_zone) = module.google_cluster.storage }
  encryption_key = module.cluster.encryption_key
}
