data "nstance_userdata" "agent" {
  role = "agent"
}

resource "nstance_shard" "us_west_2a" {
  wait_for_leader = true

  config = {
    cluster = {
      id = "example"
      secrets = {
        encryption_key = {
          provider = "aws-secrets-manager"
          source   = "arn:aws:secretsmanager:us-west-2:123456789012:secret:nstance-encryption-key"
        }
      }
    }

    server = {
      shard          = "us-west-2a"
      provider       = { kind = "aws", region = "us-west-2", zone = "us-west-2a" }
      leader_network = { ipv4 = "10.0.0.100", interface_id = "eni-0123456789abcdef0" }
      subnet_pools   = { workers = ["subnet-0123456789abcdef0"] }
      bind = {
        health_addr       = "0.0.0.0:8990"
        election_addr     = "0.0.0.0:8991"
        registration_addr = "0.0.0.0:8992"
        operator_addr     = "0.0.0.0:8993"
        agent_addr        = "0.0.0.0:8994"
      }
      advertise = {
        health_addr       = ":8990"
        election_addr     = ":8991"
        registration_addr = "10.0.0.100:8992"
        operator_addr     = "10.0.0.100:8993"
        agent_addr        = "10.0.0.100:8994"
      }
    }

    defaults = {
      userdata = { content = data.nstance_userdata.agent.content }
    }

    templates = {
      worker = {
        kind          = "wrk"
        arch          = "arm64"
        instance_type = "t4g.medium"
        subnet_pool   = "workers"
        args = {
          ImageId          = "ami-0123456789abcdef0"
          SecurityGroupIds = ["sg-0123456789abcdef0"]
        }
      }
    }

    groups = {
      default = { workers = { template = "worker", size = 2 } }
    }
  }
}

# The configuration of another shard, from a file.
resource "nstance_shard" "us_west_2b" {
  config = provider::nstance::jsonc_decode(file("${path.module}/us-west-2b.jsonc"))
}
