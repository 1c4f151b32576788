# Registered when the run begins, removed when it ends.
ephemeral "nstance_operator_identity" "run" {
  cluster_id = "example"
  tenant     = "default"
  ttl        = "2h"
}

provider "nstance" {
  alias = "fleet"

  operator = {
    servers            = { "us-west-2a" = "10.0.0.100:8993" }
    ca_certificate_pem = ephemeral.nstance_operator_identity.run.ca_certificate_pem
    certificate_pem    = ephemeral.nstance_operator_identity.run.certificate_pem
    private_key_pem    = ephemeral.nstance_operator_identity.run.private_key_pem
  }
}

resource "nstance_group" "batch" {
  provider = nstance.fleet
  shard    = "us-west-2a"
  name     = "batch"
  spec     = { template = "worker" }
}
