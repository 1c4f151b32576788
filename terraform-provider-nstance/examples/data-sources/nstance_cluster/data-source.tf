data "nstance_cluster" "this" {
  id = "example"
}

output "ca_fingerprint" {
  value = data.nstance_cluster.this.ca_fingerprint
}
