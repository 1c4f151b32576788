# The environment for users: three zones with a hot standby each, protected from deletion.

terraform {
  required_version = ">= 1.11"

  required_providers {
    aws     = { source = "hashicorp/aws", version = ">= 5.100, < 7.0" }
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }

  # The state of this environment alone. The lock file keeps two applies from running at the same time.
  backend "s3" {
    bucket       = "example-terraform-state"
    key          = "nstance/production.tfstate"
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

  environment = "production"
  zones       = { us-west-2a = 0, us-west-2b = 1, us-west-2c = 2 }
  ipv4_cidr   = "10.2.0.0/16"

  # Version 1 of the images.
  images = { server = "ami-00000000000000001", agent = "ami-10000000000000001" }

  server_count     = 2
  workers_per_zone = 3
}
