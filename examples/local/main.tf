# A cluster on this machine: a bucket in dev-s3, and one shard. The shard's VMs are windows of a tmux session, each with
# a real agent. `make up` and `make demo` apply it. The README beside this file explains how to apply it by hand.

terraform {
  required_version = ">= 1.11"

  required_providers {
    nstance = { source = "nstance-kit/nstance" }
  }
}

# The provider reads AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from the environment.
provider "nstance" {
  storage = {
    provider   = "s3"
    bucket     = var.bucket
    region     = "us-east-1"
    endpoint   = var.endpoint
    path_style = true
  }
  encryption_key      = local.encryption_key
  old_encryption_keys = local.old_encryption_keys
}

# The CA, and the key that signs registration nonces.
resource "nstance_cluster" "this" {
  id = var.cluster
}

# Every VM receives this secret as api-token.key. The value is not in the plan or the state.
resource "nstance_secret" "api_token" {
  cluster_id       = nstance_cluster.this.id
  name             = "api-token"
  value_wo         = var.api_token
  value_wo_version = 1
}

# docs/start/practise.md replaces these values with override files.
locals {
  encryption_key      = { provider = "env", source = "NSTANCE_ENCRYPTION_KEY" }
  old_encryption_keys = []

  groups = {
    default = {
      workers = { template = "worker", size = var.size, scaling = var.scaling, spares = var.spares }
    }
  }
}

locals {
  # Agents and operators use 127.0.0.1, because localhost resolves to IPv6 first on some machines.
  addresses = { for i, name in ["health", "election", "registration", "operator", "agent"] : "${name}_addr" => "127.0.0.1:${var.first_port + i}" }

  # nstance-server --instance N adds 10*(N-1) to every port. Agents receive the addresses of all servers: an agent with
  # only the leader's address does not find the next leader if the leader hangs. In a cloud the leader has a fixed
  # address.
  every = { for service, offset in { Registration = 2, Agent = 4 } : service => join(",", [for n in range(var.servers) : "127.0.0.1:${var.first_port + offset + 10 * n}"]) }
  userdata = replace(replace(file("${path.module}/userdata.sh.tmpl"),
    "{{ .Server.RegistrationAddr }}", local.every["Registration"]),
  "{{ .Server.AgentAddr }}", local.every["Agent"])
}

resource "nstance_shard" "this" {
  # Destruction has the reverse order: first the shard's VMs, then the CA that they trust.
  depends_on      = [nstance_cluster.this, nstance_secret.api_token]
  wait_for_leader = var.wait_for_leader

  config = {
    cluster = {
      id      = var.cluster
      secrets = { encryption_key = local.encryption_key, old_encryption_keys = local.old_encryption_keys }
    }

    # Two servers may serve the shard: one leads, the other is the standby.
    server = {
      shard                 = var.shard
      provider              = { kind = "tmux", region = "dev", zone = "deva", options = var.agents }
      bind                  = local.addresses
      advertise             = local.addresses
      subnet_pools          = { local = ["local"] } # tmux has no subnets: one name is enough
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

        # Agents accept the extensions .crt .key .pub .json .env, and those in NSTANCE_RECV_EXTENSIONS.
        files = {
          # A certificate for a key pair that the agent generates. The private key never leaves the VM.
          "app.server.crt" = { kind = "certificate", template = "app.server", key = { source = "agent", name = "app.server.pub" } }

          # After a change of the greeting, apply pushes the file to the running VMs.
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
            json = {
              shard       = "{{ .Server.Shard }}"
              zone        = "{{ .Provider.Zone }}"
              environment = "{{ .Vars.environment }}"
              replicas    = var.size
            }
          }

          "api-token.key" = { kind = "secret", source = nstance_secret.api_token.name }
          "operators.pub" = { kind = "string", content = "${var.operator_key}\n" }
        }
      }
    }

    groups = local.groups
  }
}
