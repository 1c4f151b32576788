# What all shards have in common, and what is each one's own.
locals {
  shards = toset(["us-west-2a", "us-west-2b", "us-west-2c"])
}

resource "nstance_shard" "this" {
  for_each = local.shards
  config = provider::nstance::config_merge(
    provider::nstance::jsonc_decode(file("${path.module}/common.jsonc")),
    { server = { shard = each.key, provider = { zone = each.key } } },
  )
}
