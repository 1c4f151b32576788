output "shard" {
  description = "The shard's addresses for operators and agents."
  value = {
    id                = nstance_shard.this.shard
    leader_ipv4       = var.leader_network.ipv4
    leader_ipv6       = var.leader_network.ipv6
    registration_addr = "${local.leader_url}:8992"
    operator_addr     = "${local.leader_url}:8993"
    agent_addr        = "${local.leader_url}:8994"
  }
}

output "server_userdata" {
  description = "The boot script of a server: user data for cloud-init, or a script to run once as root on a machine with the server's image."
  value       = data.nstance_userdata.server.content
}

data "nstance_admin_context" "this" {
  name           = var.cluster.id
  servers        = { (var.shard) = "${local.leader_url}:8993" }
  storage        = merge(local.storage, { path_style = var.cluster.primary == null })
  encryption_key = local.home.encryption_key
}

output "admin_context" {
  description = "A context for nstance-admin with this shard, for `nstance-admin context import`. It has no secrets. For a context with several shards, use the data source `nstance_admin_context`."
  value       = data.nstance_admin_context.this.json
}
