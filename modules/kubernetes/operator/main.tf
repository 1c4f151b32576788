locals {
  values = {
    config = {
      cluster_id = var.cluster_id
      tenant     = var.tenant
      shards = { for id, shard in var.shards : id => {
        registration_addr = shard.registration_addr
        operator_addr     = shard.operator_addr
      } }
    }
    ca = { certificate = var.ca_certificate_pem }
  }
  helm_values = yamlencode(local.values)

  operator_values = {
    values      = local.values
    helm_values = local.helm_values
    config_map = yamlencode({
      apiVersion = "v1"
      kind       = "ConfigMap"
      metadata   = { name = var.name, namespace = var.namespace }
      data       = { "values.yaml" = local.helm_values }
    })
  }
}
