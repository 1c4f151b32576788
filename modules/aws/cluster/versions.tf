terraform {
  required_version = ">= 1.11"

  required_providers {
    aws     = { source = "registry.terraform.io/hashicorp/aws", version = ">= 5.100" }
    nstance = { source = "registry.terraform.io/nstance-kit/nstance", version = ">= 0.0.1" }
  }
}
