resource "nstance_servers_ready" "this" {
  # A server reports after its machine has booted.
  depends_on = [aws_autoscaling_group.server, nstance_shard.this]

  shard      = "us-west-2a"
  generation = local.server_generation # NSTANCE_SERVER_GENERATION of the servers' boot script
  timeout    = "15m"
}
