output "groups" {
  value = keys(provider::nstance::jsonc_decode(file("${path.module}/us-west-2a.jsonc")).groups.default)
}
