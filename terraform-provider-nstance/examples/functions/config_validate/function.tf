# nstance_shard checks by itself; this is for documents that go elsewhere.
output "valid" {
  value = provider::nstance::config_validate(provider::nstance::jsonc_decode(file("${path.module}/us-west-2a.jsonc")))
}
