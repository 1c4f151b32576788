# One shard: the configuration of its groups, and the boot script of its servers. The servers are machines that exist.

locals {
  # The server's unit gives it no capabilities. Those below are only for the leader's address. Secrets come from files
  # that only the servers have, because the boot script is in the state. They may be on a CD-ROM with the label nstance.
  # The unit's user reads those that the configuration names, such as a token.
  drop_in = <<-TEXT
    [Service]
    CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW
    AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW
    RestrictAddressFamilies=AF_PACKET
    EnvironmentFile=-/etc/nstance/secrets.env
  TEXT
  unit_commands = [
    "mkdir -p /etc/systemd/system/nstance-server.service.d",
    "printf %s '${local.drop_in}' >/etc/systemd/system/nstance-server.service.d/20-onprem.conf",
    "systemctl daemon-reload",
    "install -d -m 755 /etc/nstance",
    "if [ -e /dev/disk/by-label/nstance ]; then",
    "  mount -o ro /dev/disk/by-label/nstance /mnt",
    "  find /mnt -maxdepth 1 -type f -exec install -m 600 -o nstance-server -g nstance-server -t /etc/nstance {} +",
    "  umount /mnt",
    "fi",
  ]
  leader_host = coalesce(var.leader_network.dns_name, var.leader_network.ipv4, var.leader_network.ipv6)
  leader_url  = strcontains(local.leader_host, ":") ? "[${local.leader_host}]" : local.leader_host
}

data "nstance_userdata" "server" {
  role            = "server"
  shard           = var.shard
  storage         = "s3"
  bucket          = var.bucket.name
  prefix          = var.bucket.prefix
  extra_args      = length(var.server_args) == 0 ? null : var.server_args
  binaries        = length(var.server_binaries) == 0 ? null : var.server_binaries
  commands_before = concat(local.unit_commands, var.server_commands)
  environment = merge({
    # Only S3 is at the endpoint, if the cluster's bucket is on AWS.
    (var.cluster.primary == null ? "AWS_ENDPOINT_URL" : "AWS_ENDPOINT_URL_S3") = var.bucket.endpoint
    AWS_REGION                                                                 = var.bucket.region
    AWS_S3_USE_PATH_STYLE                                                      = "true"
  }, var.server_environment)
}

data "nstance_userdata" "agent" {
  role            = "agent"
  binaries        = length(var.agent_binaries) == 0 ? null : var.agent_binaries
  environment     = length(var.agent_environment) == 0 ? null : var.agent_environment
  commands_before = length(var.agent_commands) == 0 ? null : var.agent_commands
}

locals {
  # Where the cluster's own objects, secrets and encryption key are: in the shard's bucket, or in a cloud.
  home = var.cluster.primary != null ? var.cluster.primary : {
    id             = var.cluster.id
    storage        = { provider = "s3", bucket = var.bucket.name, prefix = var.bucket.prefix, region = var.bucket.region, endpoint = var.bucket.endpoint }
    secrets        = { provider = "object-storage", prefix = null, project_id = null }
    encryption_key = var.cluster.encryption_key
  }
  # The environment names the endpoint of the shard's own bucket, so that of the cluster's bucket must be named here.
  storage = merge(local.home.storage, {
    endpoint = local.home.storage.provider == "s3" ? coalesce(local.home.storage.endpoint, "https://s3.${coalesce(local.home.storage.region, "us-east-1")}.amazonaws.com") : null
  })
}

resource "nstance_shard" "this" {
  wait_for_leader = var.wait_for_leader
  timeouts        = { delete = var.destroy_timeout }

  deletion_protection = var.deletion_protection
  force_destroy       = var.force_destroy

  config = provider::nstance::config_merge({
    cluster = {
      id      = var.cluster.id
      storage = var.cluster.primary == null ? null : merge(local.storage, { identity = var.identity })
      secrets = merge(local.home.secrets, { encryption_key = local.home.encryption_key })
    }
    server = {
      shard          = var.shard
      leader_network = merge(var.leader_network, { kind = "arp" })
    }
    defaults = { userdata = { content = data.nstance_userdata.agent.content } }
  }, var.config)
}
