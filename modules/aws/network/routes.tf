# Routes to the internet. Public subnets use the internet gateway. All others use NAT gateways (IPv4) and an egress-only
# gateway (IPv6).

locals {
  # If the variable names a gateway of the existing VPC, that gateway is used.
  make_internet_gateway    = var.vpc.internet_gateway == null && (length(local.public) > 0 || (var.vpc.existing == null && length(local.nat) > 0))
  make_egress_only_gateway = var.vpc.egress_only_gateway == null && local.ipv6 && length(local.private) > 0
  internet_gateway         = local.make_internet_gateway ? aws_internet_gateway.this[0].id : var.vpc.internet_gateway
  egress_only_gateway      = local.make_egress_only_gateway ? aws_egress_only_internet_gateway.this[0].id : var.vpc.egress_only_gateway
}

resource "aws_internet_gateway" "this" {
  count  = local.make_internet_gateway ? 1 : 0
  vpc_id = local.vpc_id
  tags   = merge({ Name = var.name }, var.tags)
}

resource "aws_egress_only_internet_gateway" "this" {
  count  = local.make_egress_only_gateway ? 1 : 0
  vpc_id = local.vpc_id
  tags   = merge({ Name = var.name }, var.tags)
}

# A NAT gateway in another subnet is created before the old one is destroyed, so it needs another address.
resource "terraform_data" "nat_subnet" {
  for_each         = local.nat
  triggers_replace = [local.subnet_ids[each.key]]
}

resource "aws_eip" "nat" {
  for_each = local.nat
  domain   = "vpc"
  tags     = merge({ Name = "${var.name}-nat-${each.value.zone}" }, var.tags)

  lifecycle {
    create_before_destroy = true
    replace_triggered_by  = [terraform_data.nat_subnet[each.key]]

    precondition {
      condition     = length(local.nat) <= var.elastic_ips
      error_message = "${length(local.nat)} NAT gateways need as many Elastic IPs, and the account may have ${var.elastic_ips} in the region. Use fewer NAT gateways, or raise the quota \"EC2-VPC Elastic IPs\" and set elastic_ips."
    }
  }
}

resource "aws_nat_gateway" "this" {
  for_each      = local.nat
  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = local.subnet_ids[each.key]
  tags          = merge({ Name = "${var.name}-nat-${each.value.zone}" }, var.tags)

  depends_on = [aws_internet_gateway.this, aws_route.public_ipv4]
}

# One route table for all public subnets.
resource "aws_route_table" "public" {
  count  = length(local.public) > 0 ? 1 : 0
  vpc_id = local.vpc_id
  tags   = merge({ Name = "${var.name}-public" }, var.tags)
}

resource "aws_route" "public_ipv4" {
  count                  = length(local.public) > 0 ? 1 : 0
  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = local.internet_gateway
}

resource "aws_route" "public_ipv6" {
  count                       = length(local.public) > 0 && local.ipv6 ? 1 : 0
  route_table_id              = aws_route_table.public[0].id
  destination_ipv6_cidr_block = "::/0"
  gateway_id                  = local.internet_gateway
}

# One route table for each other subnet.
resource "aws_route_table" "private" {
  for_each = local.private
  vpc_id   = local.vpc_id
  tags     = merge({ Name = "${var.name}-${replace(each.key, "/", "-")}" }, var.tags)
}

resource "aws_route" "nat" {
  for_each               = { for key, nat in local.nat_for : key => nat if !local.private[key].native }
  route_table_id         = aws_route_table.private[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[each.value].id

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_route" "nat64" {
  for_each                    = { for key, nat in local.nat_for : key => nat if local.private[key].native }
  route_table_id              = aws_route_table.private[each.key].id
  destination_ipv6_cidr_block = "64:ff9b::/96"
  nat_gateway_id              = aws_nat_gateway.this[each.value].id

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_route" "private_ipv6" {
  for_each                    = local.ipv6 ? local.private : {}
  route_table_id              = aws_route_table.private[each.key].id
  destination_ipv6_cidr_block = "::/0"
  egress_only_gateway_id      = local.egress_only_gateway

  lifecycle {
    create_before_destroy = true
  }
}

# A subnet that becomes public or private keeps its association, which moves to the other route table. EC2 refuses a second
# association of a subnet. The other route table has its routes by then, and the old one loses them afterwards.
resource "aws_route_table_association" "this" {
  depends_on = [
    aws_route.public_ipv4, aws_route.public_ipv6, aws_route.nat, aws_route.nat64, aws_route.private_ipv6, aws_vpc_endpoint.s3,
  ]

  for_each       = local.made
  route_table_id = each.value.public ? aws_route_table.public[0].id : aws_route_table.private[each.key].id
  subnet_id      = aws_subnet.this[each.key].id

  # VMs that leave a subnet need its routes until then.
  lifecycle {
    create_before_destroy = true
  }
}
