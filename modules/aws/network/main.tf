# The network of the VMs: a new or an existing VPC, its subnets, its routes to the internet, and load balancers.

data "aws_region" "current" {}

locals {
  ipv6 = var.ip_family != "ipv4"

  # One object for each subnet, with the key role/zone/index.
  subnets = merge([for role, zones in var.subnets : merge([for zone, list in zones : {
    for place, subnet in list : "${role}/${zone}/${place}" => merge(subnet, {
      role = role
      zone = zone
      # A subnet with IPv6 only. EC2 calls it IPv6-native.
      native  = var.ip_family == "ipv6" && subnet.ipv4_cidr == null && subnet.existing == null
      has_nat = subnet.nat_gateway && var.nat_mode == "provider"
      nat_key = subnet.nat_subnet == null ? null : length(split("/", subnet.nat_subnet)) == 3 ? subnet.nat_subnet : "${subnet.nat_subnet}/0"
    })
  }]...)]...)

  made     = { for key, subnet in local.subnets : key => subnet if subnet.existing == null }
  existing = { for key, subnet in local.subnets : key => subnet if subnet.existing != null }
  public   = { for key, subnet in local.made : key => subnet if subnet.public }
  private  = { for key, subnet in local.made : key => subnet if !subnet.public }
  nat      = { for key, subnet in local.subnets : key => subnet if subnet.has_nat }
  # NAT gateways by zone, for subnets that do not name one.
  nat_of_zone = { for key, subnet in local.nat : subnet.zone => key... }
  nat_for = { for key, subnet in local.private : key => (
    subnet.nat_key != null ? subnet.nat_key : try(local.nat_of_zone[subnet.zone][0], keys(local.nat)[0])
  ) if length(local.nat) > 0 }
}

resource "aws_vpc" "this" {
  count                            = var.vpc.existing == null ? 1 : 0
  cidr_block                       = var.vpc.ipv4_cidr
  assign_generated_ipv6_cidr_block = local.ipv6
  enable_dns_support               = true
  enable_dns_hostnames             = true
  tags                             = merge({ Name = var.name }, var.tags)
}

data "aws_vpc" "existing" {
  count = var.vpc.existing == null ? 0 : 1
  id    = var.vpc.existing

  lifecycle {
    postcondition {
      condition     = !local.ipv6 || length(self.ipv6_cidr_block) > 0
      error_message = "The existing VPC ${self.id} has no IPv6 addresses: give it some, or set ip_family = \"ipv4\"."
    }
  }
}

locals {
  vpc_id    = var.vpc.existing == null ? aws_vpc.this[0].id : data.aws_vpc.existing[0].id
  ipv4_cidr = var.vpc.existing == null ? aws_vpc.this[0].cidr_block : data.aws_vpc.existing[0].cidr_block
  # A VPC may have more than one IPv4 network.
  ipv4_cidrs = var.vpc.existing == null ? [var.vpc.ipv4_cidr] : distinct(concat([local.ipv4_cidr], data.aws_vpc.existing[0].cidr_block_associations[*].cidr_block))
  ipv6_cidr  = !local.ipv6 ? null : var.vpc.existing == null ? aws_vpc.this[0].ipv6_cidr_block : data.aws_vpc.existing[0].ipv6_cidr_block
}

data "aws_availability_zones" "this" {}

resource "aws_subnet" "this" {
  for_each          = local.made
  vpc_id            = local.vpc_id
  availability_zone = each.value.zone

  cidr_block              = each.value.ipv4_cidr
  map_public_ip_on_launch = each.value.public && !each.value.native

  ipv6_native                     = each.value.native
  ipv6_cidr_block                 = !local.ipv6 ? null : each.value.ipv6_cidr != null ? each.value.ipv6_cidr : cidrsubnet(local.ipv6_cidr, 8, each.value.ipv6_netnum)
  assign_ipv6_address_on_creation = local.ipv6
  # With DNS64, VMs without IPv4 reach IPv4-only hosts: a NAT gateway translates addresses in 64:ff9b::/96.
  enable_dns64 = each.value.native && contains(keys(local.nat_for), each.key)

  # Host names of VMs without IPv4 cannot contain an IPv4 address.
  enable_resource_name_dns_aaaa_record_on_launch = each.value.native
  private_dns_hostname_type_on_launch            = each.value.native ? "resource-name" : null

  tags = merge({ Name = "${var.name}-${replace(each.key, "/", "-")}" }, var.tags)

  # Two networks overlap if their first addresses are equal in the bits of the larger network.
  lifecycle {
    # The users of a subnet change before it is destroyed: first the shard's configuration, then its VMs.
    create_before_destroy = true

    precondition {
      condition     = contains(data.aws_availability_zones.this.names, each.value.zone)
      error_message = "Subnet ${each.key}: there is no zone ${each.value.zone} for this account and region, which have ${join(", ", data.aws_availability_zones.this.names)}."
    }
    precondition {
      condition = each.value.ipv4_cidr == null ? true : anytrue([for vpc in local.ipv4_cidrs :
        tonumber(split("/", each.value.ipv4_cidr)[1]) >= tonumber(split("/", vpc)[1]) &&
        cidrhost("${split("/", each.value.ipv4_cidr)[0]}/${split("/", vpc)[1]}", 0) == cidrhost(vpc, 0)
      ])
      error_message = "Subnet ${each.key} (${coalesce(each.value.ipv4_cidr, "-")}) is not inside the VPC (${join(", ", local.ipv4_cidrs)})."
    }
    precondition {
      condition = alltrue([for key, other in local.made : key == each.key || each.value.ipv4_cidr == null || other.ipv4_cidr == null ? true :
        cidrhost("${split("/", each.value.ipv4_cidr)[0]}/${min(split("/", each.value.ipv4_cidr)[1], split("/", other.ipv4_cidr)[1])}", 0) !=
        cidrhost("${split("/", other.ipv4_cidr)[0]}/${min(split("/", each.value.ipv4_cidr)[1], split("/", other.ipv4_cidr)[1])}", 0)
      ])
      error_message = "Subnet ${each.key} (${coalesce(each.value.ipv4_cidr, "-")}) overlaps another one of subnets."
    }
    precondition {
      condition     = each.value.ipv4_cidr == null ? true : tonumber(split("/", each.value.ipv4_cidr)[1]) >= 16 && tonumber(split("/", each.value.ipv4_cidr)[1]) <= 28
      error_message = "Subnet ${each.key} (${coalesce(each.value.ipv4_cidr, "-")}) must have 16 to 28 bits."
    }
  }
}

data "aws_subnet" "existing" {
  for_each = local.existing
  id       = each.value.existing

  lifecycle {
    postcondition {
      condition     = self.availability_zone == each.value.zone
      error_message = "Subnet ${self.id} is in zone ${self.availability_zone}, and subnets has it in ${each.value.zone}."
    }
    postcondition {
      condition     = self.vpc_id == local.vpc_id
      error_message = "Subnet ${self.id} is in ${self.vpc_id}, which is not the VPC of the others."
    }
  }
}

locals {
  subnet_ids = merge({ for key, subnet in aws_subnet.this : key => subnet.id }, { for key, subnet in data.aws_subnet.existing : key => subnet.id })
  # The first subnet of each zone, by role. Load balancers and endpoints use one subnet per zone.
  ids_of_role = { for role, zones in var.subnets : role => [for zone, list in zones : local.subnet_ids["${role}/${zone}/0"]] }
}
