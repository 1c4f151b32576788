resource "nstance_cluster" "this" {
  id = "example"
}

ephemeral "nstance_operator_nonce" "kubernetes" {
  cluster_id = "example"
  tenant     = "default"
  expiry     = "30m"
  depends_on = [nstance_cluster.this]
}

# Where the operator finds it: a write-only argument, such as that of a Kubernetes secret. Here, another secret of the cluster.
resource "nstance_secret" "nonce" {
  cluster_id       = nstance_cluster.this.id
  name             = "operator-nonce"
  value_wo         = ephemeral.nstance_operator_nonce.kubernetes.nonce
  value_wo_version = 1
}
