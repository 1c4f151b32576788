# A cluster on this machine: a bucket in dev-s3, and one shard whose VMs are windows of a tmux session with a real agent in each.
# `make up` and `make demo` apply it; the README beside it says how to do so by hand.

terraform {
  required_version = ">= 1.11"

  required_providers {
    nstance = { source = "nstance-kit/nstance" }
  }
}

# Credentials come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.
provider "nstance" {
  storage = {
    provider   = "s3"
    bucket     = var.bucket
    region     = "us-east-1"
    endpoint   = var.endpoint
    path_style = true
  }
  encryption_key = { provider = "env", source = "NSTANCE_ENCRYPTION_KEY" }
}

# The CA, and the key that signs registration nonces.
resource "nstance_cluster" "this" {
  id = var.cluster
}

# Delivered to every VM as api-token.key. The value is in no plan and no state.
resource "nstance_secret" "api_token" {
  cluster_id       = nstance_cluster.this.id
  name             = "api-token"
  value_wo         = var.api_token
  value_wo_version = 1
}

locals {
  # Agents and operators are told 127.0.0.1 and not localhost, which is IPv6 first on some machines.
  addresses = { for i, name in ["health", "election", "registration", "operator", "agent"] : "${name}_addr" => "127.0.0.1:${var.first_port + i}" }

  # nstance-server --instance N adds 10*(N-1) to every port. The agents get the addresses of all servers, because an agent that knows only the
  # leader does not find the next one when the leader hangs. In a cloud the leader has an address of its own.
  every = { for service, offset in { Registration = 2, Agent = 4 } : service => join(",", [for n in range(var.servers) : "127.0.0.1:${var.first_port + offset + 10 * n}"]) }
  userdata = replace(replace(file("${path.module}/userdata.sh.tmpl"),
    "{{ .Server.RegistrationAddr }}", local.every["Registration"]),
  "{{ .Server.AgentAddr }}", local.every["Agent"])
}

resource "nstance_shard" "this" {
  # Destroyed in the opposite order: first the shard's VMs go, then the CA that they trust.
  depends_on      = [nstance_cluster.this, nstance_secret.api_token]
  wait_for_leader = var.wait_for_leader

  cluster = {
    id      = var.cluster
    secrets = { encryption_key = { provider = "env", source = "NSTANCE_ENCRYPTION_KEY" } }
  }

  # Two servers may serve the shard: one leads, the other waits.
  server = {
    shard                 = var.shard
    provider              = { kind = "tmux", region = "dev", zone = "deva", options = var.agents }
    bind                  = local.addresses
    advertise             = local.addresses
    subnet_pools          = { local = ["local"] } # tmux has no subnets: one name stands for all
    health_check_interval = "5s"
    default_drain_timeout = "10s"
  }

  certificates = {
    "app.server" = {
      kind = "server"
      cn   = "{{ .Instance.Hostname }}"
      dns  = ["{{ .Instance.Hostname }}", "localhost"]
      ip   = ["127.0.0.1"]
      ttl  = 24 # hours
    }
  }

  defaults = {
    vars     = { environment = "development" }
    userdata = { content = local.userdata }
  }

  templates = {
    worker = {
      kind        = "wrk"
      arch        = "amd64"
      subnet_pool = "local"
      vars        = { greeting = var.greeting }

      # Agents accept .crt .key .pub .json .env, and what NSTANCE_RECV_EXTENSIONS adds.
      files = {
        # A certificate for a key pair that the agent makes; the private key never leaves the VM.
        "app.server.crt" = { kind = "certificate", template = "app.server", key = { source = "agent", name = "app.server.pub" } }

        # Change the greeting and apply again: the file is pushed to the VMs that run.
        "app.env" = {
          kind = "env"
          vars = {
            INSTANCE_ID = "{{ .Instance.ID }}"
            GROUP       = "{{ .Instance.Tenant }}/{{ .Instance.Group }}"
            GREETING    = "{{ .Vars.greeting }} from {{ .Instance.Hostname }}"
          }
        }

        "app.json" = {
          kind = "json"
          json = jsonencode({
            shard       = "{{ .Server.Shard }}"
            zone        = "{{ .Provider.Zone }}"
            environment = "{{ .Vars.environment }}"
            replicas    = var.size
          })
        }

        "api-token.key" = { kind = "secret", source = nstance_secret.api_token.name }
        "operators.pub" = { kind = "string", content = "${var.operator_key}\n" }
      }
    }
  }

  groups = {
    "default/workers" = { template = "worker", size = var.size }
  }
}
