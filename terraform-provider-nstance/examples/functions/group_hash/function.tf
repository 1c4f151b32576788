# A new value says that the group's instances are replaced.
output "infra" {
  value = provider::nstance::group_hash(file("${path.module}/us-west-2a.jsonc"), "default/workers").infra
}
