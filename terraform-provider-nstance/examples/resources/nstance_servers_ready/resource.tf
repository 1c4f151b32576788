variable "server_generation" {
  description = "NSTANCE_SERVER_GENERATION in the boot script of the servers."
  type        = string
}

# A server reports after its machine has booted: let this depend on what starts the machines and on the nstance_shard.
resource "nstance_servers_ready" "this" {
  shard      = "us-west-2a"
  generation = var.server_generation
  timeout    = "15m"

  # If the cloud refuses a machine, the apply fails with the cloud's reason.
  machine_group = {
    kind   = "aws"
    name   = "example-us-west-2a-server"
    region = "us-west-2"
  }
}
