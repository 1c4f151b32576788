terraform {
  required_version = ">= 1.11"

  required_providers {
    nstance = { source = "nstance-kit/nstance" }
  }
}

# Credentials of the bucket come from the usual places: environment, profiles, roles.
provider "nstance" {
  storage = {
    provider = "s3"
    bucket   = "my-bucket"
    region   = "us-west-2"
  }
  encryption_key = {
    provider = "aws-secrets-manager"
    source   = "arn:aws:secretsmanager:us-west-2:123456789012:secret:nstance-encryption-key"
  }

  # Only for nstance_group.
  operator = {
    identity_dir = pathexpand("~/.nstance")
  }
}
