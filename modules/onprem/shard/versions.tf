terraform {
  required_version = ">= 1.11"

  required_providers {
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }
}
