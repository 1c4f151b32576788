# A shard in a network that the same apply creates: the IDs of the subnet and of the DNS zone are unknown at plan. The
# shard's configuration also has unknown values, and a sensitive one.

terraform {
  required_version = ">= 1.11"

  required_providers {
    aws     = { source = "hashicorp/aws", version = ">= 5.100, < 7.0" }
    nstance = { source = "nstance-kit/nstance", version = ">= 0.0.1, < 1.0" }
  }
}

# Mocks of AWS's resources have known IDs at plan in OpenTofu. This resource is not mocked.
resource "terraform_data" "id" {
  for_each = { subnet = "subnet-0000000000000000a", zone = "Z0000000000000", owner = "123456789012", key = "admin" }
  input    = each.value
}

module "shard" {
  source = "../.."

  cluster = {
    id             = "example"
    bucket         = "example-bucket"
    region         = "us-west-2"
    encryption_key = { provider = "aws-secrets-manager", source = "arn" }
  }
  account = {
    servers                    = { one = { instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/a" } }
    agent_instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/b"
  }
  network = {
    vpc_id    = "vpc-0000000000000000a"
    ipv4_cidr = "10.0.0.0/16"
    subnets   = { servers = { us-west-2a = [{ id = terraform_data.id["subnet"].output, ipv4_cidr = "10.0.1.0/24" }] } }
  }
  shard      = "one"
  zone       = "us-west-2a"
  leader_dns = { zone_id = terraform_data.id["zone"].output, name = "leader.example.internal" }

  config = provider::nstance::config_merge({
    server    = { subnet_pools = { more = [terraform_data.id["subnet"].output] } }
    images    = { debian = { provider = "aws", owners = ["self"], filters = [{ name = "owner-id", values = [terraform_data.id["owner"].output] }] } }
    templates = { worker = { kind = "wrk", arch = "arm64", subnet_pool = "more", args = { ImageId = "{{ .Image.debian }}", KeyName = terraform_data.id["key"].output } } }
    }, {
    groups = { default = { workers = { template = "worker", instance_type = "t4g.nano", vars = { zone = sensitive("a") } } } }
  })
}

output "subnet_pools" {
  value = keys(module.shard.shard.subnet_pools)
}
