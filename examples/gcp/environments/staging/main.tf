# The environment for testing a version before production: one zone, one VM, and it can be destroyed.

terraform {
  required_version = ">= 1.11"

  required_providers {
    google  = { source = "hashicorp/google", version = ">= 5.39, < 8.0" }
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }

  # The state of this environment alone. The backend locks it, so that two applies cannot run at the same time.
  backend "gcs" {
    bucket = "example-terraform-state"
    prefix = "nstance/staging"
  }
}

provider "google" {
  project = "my-project"
  region  = "us-central1"
}

provider "nstance" {
  storage = module.fleet.storage
}

module "fleet" {
  source = "../fleet"

  environment = "staging"
  region      = "us-central1"
  zones       = { us-central1-a = 0 }
  ipv4_cidr   = "10.1.0.0/16"

  # Version 2 of the images.
  images = {
    server = "projects/my-project/global/images/nstance-server-amd64-2"
    agent  = "projects/my-project/global/images/nstance-agent-amd64-2"
  }

  workers_per_zone    = 1
  deletion_protection = false
}
