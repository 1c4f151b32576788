resource "nstance_cluster" "this" {
  id = "example"
}

output "ca_certificate" {
  value = nstance_cluster.this.ca_certificate_pem
}
