output "network" {
  description = "VPC, subnets by role and region, and load balancers, as the value of the variable `network` of the module `shard`."
  # Users of this output are created after the routes and destroyed before them. Servers need the routes until their
  # last VM is deleted.
  depends_on = [
    google_compute_router_nat.this,
    google_compute_firewall.health_checks,
    google_compute_forwarding_rule.balancer,
  ]
  value = {
    vpc       = local.network
    ip_family = var.ip_family
    subnets = { for role, regions in var.subnets : role => { for region, list in regions : region => [
      for place, subnet in list : {
        link             = local.links["${role}/${region}/${place}"]
        ipv4_cidr        = subnet.ipv4_cidr
        leader_ipv4_cidr = subnet.leader_ipv4_cidr
        shards           = subnet.shards
      }
    ] } }
    load_balancers = { for name, lb in var.load_balancers : name => {
      address          = google_compute_address.balancer[name].address
      sources          = local.balancer_sources[name]
      instance_groups  = { for zone in lb.zones : zone => google_compute_instance_group.balancer["${name}/${zone}"].name }
      backend_services = [for key in keys(lb.listeners) : google_compute_region_backend_service.balancer["${name}/${key}"].name]
      ports            = [for listener in values(lb.listeners) : { protocol = lower(listener.protocol), port = listener.port }]
    } }
  }
}
