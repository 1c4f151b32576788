output "shard" {
  description = "The shard's resources, and its addresses for operators and agents."
  value = {
    id                  = nstance_shard.this.shard
    zone                = var.zone
    leader_ipv4         = local.leader_ipv4
    leader_kind         = local.kind
    registration_addr   = "${local.leader_host}:${local.ports.registration}"
    operator_addr       = "${local.leader_host}:${local.ports.operator}"
    agent_addr          = "${local.leader_host}:${local.ports.agent}"
    instance_group_name = google_compute_instance_group_manager.server.name
    server_tag          = local.server_tag
    agent_tag           = local.agent_tag
    subnet_pools        = local.pools
  }
}

data "nstance_admin_context" "this" {
  name           = var.cluster.id
  servers        = { (var.shard) = "${local.leader_host}:${local.ports.operator}" }
  storage        = local.home.storage
  secrets        = local.home.secrets
  encryption_key = local.home.encryption_key
}

output "admin_context" {
  description = "A context for nstance-admin with this shard, for `nstance-admin context import`. It has no secrets. For a context with several shards, use the data source `nstance_admin_context`."
  value       = data.nstance_admin_context.this.json
}
