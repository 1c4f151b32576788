data "nstance_shard_status" "us_west_2a" {
  shard = "us-west-2a"
}

output "leader" {
  value = try(data.nstance_shard_status.us_west_2a.leader.operator_addr, null)
}

# A size is reached when as many instances are registered.
check "complete" {
  assert {
    condition     = alltrue([for g in data.nstance_shard_status.us_west_2a.groups : g.registered >= g.size])
    error_message = "There are groups without all their instances."
  }
}
