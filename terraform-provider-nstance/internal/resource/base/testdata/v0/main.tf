# The state beside this file was written by a provider whose schemas had no version.

provider "nstance" {
  storage        = { provider = "file", bucket = "bucket" }
  encryption_key = { provider = "file", source = "key" }
}

resource "nstance_cluster" "test" {
  id            = "example"
  force_destroy = true
}

resource "nstance_secret" "test" {
  cluster_id       = nstance_cluster.test.id
  name             = "db-password"
  value_wo         = "value"
  value_wo_version = 1
}

resource "nstance_operator" "test" {
  cluster_id     = nstance_cluster.test.id
  ttl            = "3650d"
  renew_before   = "1h"
  public_key_pem = <<-PEM
    -----BEGIN PUBLIC KEY-----
    MCowBQYDK2VwAyEAgi5+jj/GrNmF5sh2d1DoC5FJIb4lXE6nzJzxLxQm4fY=
    -----END PUBLIC KEY-----
  PEM
}

resource "nstance_shard" "test" {
  config = {
    cluster = {
      id      = nstance_cluster.test.id
      secrets = { encryption_key = { provider = "file", source = "key" } }
    }
    server = {
      shard                 = "dev-1"
      provider              = { kind = "tmux" }
      health_check_interval = "5s"
      subnet_pools          = { default = ["local"] }
    }
    templates = {
      worker = {
        kind  = "wrk"
        arch  = "amd64"
        args  = { command = "sleep 1" }
        vars  = { greeting = "hello" }
        files = { "app.env" = { kind = "env", vars = { NAME = "{{ .Vars.greeting }}" } } }
      }
    }
    groups = { default = { workers = { template = "worker", size = 2, subnet_pool = "default" } } }
  }
}
