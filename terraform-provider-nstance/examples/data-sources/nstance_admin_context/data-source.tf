data "nstance_admin_context" "this" {
  name    = "example"
  servers = { "us-west-2a" = "10.0.0.100:8993", "us-west-2b" = "10.0.1.100:8993" }
}

# tofu output -raw admin_context | nstance-admin context import -
output "admin_context" {
  value = data.nstance_admin_context.this.json
}
