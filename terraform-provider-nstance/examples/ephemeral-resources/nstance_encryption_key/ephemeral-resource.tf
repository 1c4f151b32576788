ephemeral "nstance_encryption_key" "this" {}

# In a real configuration: secret_string_wo of an aws_secretsmanager_secret_version, or value_wo of an aws_ssm_parameter. A new version makes a new key.
resource "nstance_cluster" "this" {
  id                        = "example"
  encryption_key_wo         = ephemeral.nstance_encryption_key.this.key_base64
  encryption_key_wo_version = 1
}
