resource "nstance_shard" "this" {
  config_jsonc = file("${path.module}/us-west-2a.jsonc")
}

# nstance_shard checks by itself; this is for documents that go elsewhere.
output "valid" {
  value = provider::nstance::config_validate(file("${path.module}/us-west-2a.jsonc"))
}
