variable "api_token" {
  type      = string
  sensitive = true
  ephemeral = true
}

# Templates deliver it with files = { "api-token.key" = { kind = "secret", source = "api-token" } }.
resource "nstance_secret" "api_token" {
  cluster_id       = "example"
  name             = "api-token"
  value_wo         = var.api_token
  value_wo_version = 1 # a new version stores the value again
}
