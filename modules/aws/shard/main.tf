# One shard: its servers, the leader's address, and its configuration.

data "aws_region" "current" {}
data "aws_default_tags" "current" {}

locals {
  name = "${var.cluster.id}-${var.shard}"
  tags = merge({ "nstance:cluster" = var.cluster.id }, var.tags)
  ipv6 = var.network.ip_family != "ipv4"

  # The tags of all VMs. The AWS provider adds its default tags neither to the instances of a launch template nor to what
  # servers start.
  vm_tags = merge(data.aws_default_tags.current.tags, var.tags)

  # The subnets of the zone that the shard may use, by role.
  subnets = { for role, zones in var.network.subnets : role => [
    for s in lookup(zones, var.zone, []) : s if s.shards == null ? true : contains(s.shards, var.shard)
  ] }
  server_subnets = local.subnets[var.server_subnets]
  pools = { for role, list in local.subnets : role => [for s in list : s.id]
  if length(list) > 0 && (var.subnet_pools == null ? true : contains(var.subnet_pools, role)) }
}

data "aws_subnet" "leader" {
  id = local.server_subnets[0].id
}

locals {
  # The network's output knows the addresses of a subnet before the subnet exists.
  leader_cidr = local.server_subnets[0].ipv4_cidr != null ? local.server_subnets[0].ipv4_cidr : data.aws_subnet.leader.cidr_block

  # What the module reads of the configuration. The provider checks the configuration, so members may be missing here. If
  # config_merge merged a sensitive value, all of its result is sensitive.
  config    = nonsensitive(var.config)
  images    = { for name, image in merge({}, lookup(local.config, "images", null)) : name => merge({ owners = null, filters = null, fallback = null }, image) }
  templates = merge({}, lookup(local.config, "templates", null))
  groups    = flatten([for tenant in values(merge({}, lookup(local.config, "groups", null))) : values(merge({}, tenant))])

  # The instance types of the servers and of the groups, by architecture.
  server_types = { (var.server_arch) = [var.server_instance_type] }
  group_types = { for name, template in local.templates : try(template.arch, "") => flatten([
    for it in concat([template], [for group in local.groups : group if try(group.template, null) == name]) :
    [try(it.instance_type, null), try(it.instance_types, null)[*]]
  ])... }
  instance_types = { for arch in ["amd64", "arm64"] : arch => toset([
    for type in flatten([lookup(local.server_types, arch, []), lookup(local.group_types, arch, [])]) : type if type != null
  ]) }
}

# tflint-ignore: terraform_unused_declarations # only its postcondition matters
data "aws_ec2_instance_type_offerings" "zone" {
  location_type = "availability-zone"

  filter {
    name   = "location"
    values = [var.zone]
  }

  filter {
    name   = "instance-type"
    values = setunion(values(local.instance_types)...)
  }

  lifecycle {
    postcondition {
      condition     = length(setsubtract(setunion(values(local.instance_types)...), self.instance_types)) == 0
      error_message = "Zone ${var.zone} does not offer the instance types ${join(", ", setsubtract(setunion(values(local.instance_types)...), self.instance_types))}."
    }
  }
}

# tflint-ignore: terraform_unused_declarations # only its postcondition matters
data "aws_ec2_instance_types" "arch" {
  for_each = { for arch, types in local.instance_types : arch => types if length(types) > 0 }

  filter {
    name   = "instance-type"
    values = each.value
  }

  filter {
    name   = "processor-info.supported-architecture"
    values = [each.key == "amd64" ? "x86_64" : "arm64"]
  }

  lifecycle {
    postcondition {
      condition     = length(setsubtract(each.value, self.instance_types)) == 0
      error_message = "The instance types ${join(", ", setsubtract(each.value, self.instance_types))} do not exist, or are not of the architecture ${each.key} as server_arch and the templates' arch say."
    }
  }
}

# The servers also look for these images, and start no VM while there is no image.
# tflint-ignore: terraform_unused_declarations # only its postcondition matters
data "aws_ami_ids" "agent" {
  for_each = { for name, image in local.images : name => image if image.owners != null && image.fallback == null }
  owners   = each.value.owners

  dynamic "filter" {
    for_each = each.value.filters[*]

    content {
      name   = filter.value.name
      values = filter.value.values
    }
  }

  lifecycle {
    postcondition {
      condition     = length(self.ids) > 0
      error_message = "No image for config.images.${each.key}: owners ${join(", ", each.value.owners)}${join("", [for f in each.value.filters[*] : "; ${f.name} = ${join(", ", f.values)}"])}."
    }
  }
}

# Clients find the shard at this interface. The leader attaches it to its own VM. Nothing else attaches it.
resource "aws_network_interface" "leader" {
  description     = "Leader of the Nstance shard ${var.cluster.id}/${var.shard}"
  subnet_id       = local.server_subnets[0].id
  security_groups = [aws_security_group.server.id]

  private_ips        = var.leader_network.ipv4 == null ? null : [var.leader_network.ipv4]
  ipv6_addresses     = var.leader_network.ipv6 == null ? null : [var.leader_network.ipv6]
  ipv6_address_count = local.ipv6 && var.leader_network.ipv6 == null ? 1 : null

  # The servers' role may attach interfaces with the tag nstance:leader to VMs with the tag nstance:server.
  tags = merge(local.tags, { Name = "${local.name}-leader", "nstance:leader" = var.shard })

  lifecycle {
    # Another address or subnet needs another interface. The leader keeps its interface until a server that is
    # configured for the new interface leads. nstance_shard waits for that.
    create_before_destroy = true

    precondition {
      condition     = var.leader_network.ipv4 == null ? true : try(cidrhost("${var.leader_network.ipv4}/${split("/", local.leader_cidr)[1]}", 0) == cidrhost(local.leader_cidr, 0), false)
      error_message = "leader_network.ipv4 (${coalesce(var.leader_network.ipv4, "-")}) is not in ${local.leader_cidr}, the first of the servers' subnets."
    }
    precondition {
      condition     = var.leader_network.ipv4 == null ? true : !contains([for n in [0, 1, 2, 3, -1] : try(cidrhost(local.leader_cidr, n), "")], var.leader_network.ipv4)
      error_message = "leader_network.ipv4 (${coalesce(var.leader_network.ipv4, "-")}) is reserved: EC2 keeps the first four addresses and the last address of ${local.leader_cidr}."
    }
  }
}

locals {
  leader_ipv4 = local.server_subnets[0].native ? null : aws_network_interface.leader.private_ip
  leader_ipv6 = local.ipv6 ? one(aws_network_interface.leader.ipv6_addresses) : null
  # The address for agents and operators: the name if there is one, or else IPv4 if available.
  leader_host = var.leader_dns != null ? var.leader_dns.name : local.leader_ipv4 != null ? local.leader_ipv4 : "[${coalesce(local.leader_ipv6, "::")}]"
}

# Agents find the leader by this name after a change of its addresses.
resource "aws_route53_record" "leader" {
  count   = var.leader_dns == null ? 0 : local.server_subnets[0].native ? 0 : 1
  zone_id = var.leader_dns.zone_id
  name    = var.leader_dns.name
  type    = "A"
  ttl     = var.leader_dns.ttl
  records = [local.leader_ipv4]
}

resource "aws_route53_record" "leader_ipv6" {
  count   = var.leader_dns != null && local.ipv6 ? 1 : 0
  zone_id = var.leader_dns.zone_id
  name    = var.leader_dns.name
  type    = "AAAA"
  ttl     = var.leader_dns.ttl
  records = [local.leader_ipv6]
}

data "nstance_userdata" "agent" {
  role            = "agent"
  binaries        = length(var.agent_binaries) == 0 ? null : var.agent_binaries
  environment     = length(var.agent_environment) == 0 ? null : var.agent_environment
  commands_before = length(var.agent_commands) == 0 ? null : var.agent_commands
}

locals {
  # Where the cluster's own objects, secrets and encryption key are: in this cloud, or in another one.
  home = var.cluster.primary != null ? var.cluster.primary : {
    id             = var.cluster.id
    storage        = { provider = "s3", bucket = var.cluster.bucket, prefix = var.cluster.prefix, region = var.cluster.region, endpoint = null }
    secrets        = { provider = var.cluster.secrets.provider, prefix = var.cluster.secrets.prefix == "" ? null : var.cluster.secrets.prefix, project_id = null }
    encryption_key = var.cluster.encryption_key
  }
}

resource "nstance_shard" "this" {
  # This resource is destroyed first. Its destruction waits until the leader has terminated all VMs of the shard. Until
  # then the servers need their VMs, their permissions and their routes.
  depends_on = [
    aws_autoscaling_group.server,
    aws_autoscaling_lifecycle_hook.ready,
    aws_vpc_security_group_egress_rule.server_ipv4,
    aws_vpc_security_group_egress_rule.server_ipv6,
    aws_vpc_security_group_ingress_rule.server,
    aws_vpc_security_group_egress_rule.agent_ipv4,
    aws_vpc_security_group_egress_rule.agent_ipv6,
    aws_vpc_security_group_ingress_rule.agent,
  ]

  wait_for_leader = var.wait_for_leader && var.server_count > 0
  timeouts        = { delete = var.destroy_timeout }

  deletion_protection = var.deletion_protection
  force_destroy       = var.force_destroy

  config = provider::nstance::config_merge({
    cluster = {
      id      = var.cluster.id
      storage = var.cluster.primary == null ? null : merge(var.cluster.primary.storage, { identity = var.identity })
      secrets = merge(local.home.secrets, { encryption_key = local.home.encryption_key })
    }
    server = {
      shard    = var.shard
      provider = { kind = "aws", region = data.aws_region.current.id, zone = var.zone }
      # A listener on :: also accepts IPv4.
      bind = local.ipv6 ? { for name, port in local.ports : "${name}_addr" => "[::]:${port}" } : null
      leader_network = {
        ipv4         = local.leader_ipv4
        ipv6         = local.leader_ipv6
        dns_name     = var.leader_dns == null ? null : one(distinct(concat(aws_route53_record.leader[*].name, aws_route53_record.leader_ipv6[*].name)))
        interface_id = aws_network_interface.leader.id
      }
      subnet_pools = local.pools
    }
    load_balancers = { for name, lb in var.network.load_balancers : name => { provider = "aws", target_group_arns = [for t in values(lb.targets) : t.arn] } }
    defaults       = { args = local.agent_args, userdata = { content = data.nstance_userdata.agent.content } }
  }, var.config)
}

# An apply that rolls the servers fails if no new server becomes ready, or if EC2 refuses its machine.
resource "nstance_servers_ready" "this" {
  count      = var.wait_for_leader && var.server_count > 0 ? 1 : 0
  depends_on = [nstance_shard.this]

  shard      = var.shard
  generation = local.server_generation
  timeout    = "${var.server_ready_timeout + 300}s"

  machine_group = {
    kind   = "aws"
    region = data.aws_region.current.id
    name   = aws_autoscaling_group.server.name
  }
}

locals {
  # Default arguments of RunInstances, which templates can override. The servers add IMDSv2 and the tags.
  agent_args = merge(
    {
      IamInstanceProfile = { Arn = var.account.agent_instance_profile_arn }
      SecurityGroupIds   = concat([aws_security_group.agent.id], var.agent_security_group_ids)
    },
    { for key in ["TagSpecifications"] : key => [for type in ["instance", "volume", "network-interface"] : {
      ResourceType = type
      Tags         = [for name, value in local.vm_tags : { Key = name, Value = value } if !startswith(name, "nstance:")]
    }] if length([for name in keys(local.vm_tags) : name if !startswith(name, "nstance:")]) > 0 },
    # VMs without IPv4 use the metadata service over IPv6. Load balancers require a primary IPv6 address.
    { for key in ["EnablePrimaryIpv6"] : key => true if var.network.ip_family == "ipv6" },
    { for key in ["MetadataOptions"] : key => { HttpProtocolIpv6 = "enabled" } if var.network.ip_family == "ipv6" },
  )
}
