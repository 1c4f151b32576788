# The environment for testing a version before production: one zone, one VM, and it can be destroyed.

terraform {
  required_version = ">= 1.11"

  required_providers {
    aws     = { source = "hashicorp/aws", version = ">= 5.100, < 7.0" }
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }

  # The state of this environment alone. The lock file keeps two applies from running at the same time.
  backend "s3" {
    bucket       = "example-terraform-state"
    key          = "nstance/staging.tfstate"
    region       = "us-west-2"
    use_lockfile = true
  }
}

provider "aws" {
  region = "us-west-2"
}

provider "nstance" {
  storage = module.fleet.storage
}

module "fleet" {
  source = "../fleet"

  environment = "staging"
  zones       = { us-west-2a = 0 }
  ipv4_cidr   = "10.1.0.0/16"

  # Version 2 of the images.
  images = { server = "ami-00000000000000002", agent = "ami-10000000000000002" }

  workers_per_zone    = 1
  key_provider        = "aws-parameter-store"
  deletion_protection = false
}
