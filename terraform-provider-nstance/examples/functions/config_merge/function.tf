# What all shards have in common, and what is each one's own.
locals {
  shards = toset(["us-west-2a", "us-west-2b", "us-west-2c"])
}

output "configurations" {
  value = { for shard in local.shards : shard => provider::nstance::config_merge(
    file("${path.module}/common.jsonc"),
    jsonencode({ server = { shard = shard, provider = { zone = shard } } }),
  ) }
}
