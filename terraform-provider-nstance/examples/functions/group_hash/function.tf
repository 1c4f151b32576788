locals {
  config = provider::nstance::jsonc_decode(file("${path.module}/us-west-2a.jsonc"))
}

# A new value says that the group's instances are replaced.
output "infra" {
  value = provider::nstance::group_hash(local.config, "default/workers").infra
}
