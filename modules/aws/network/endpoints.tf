# VPC endpoints: traffic to these AWS services stays inside the VPC.

data "aws_partition" "current" {}

locals {
  # In China the names of these services begin with cn.com.amazonaws, and those of all others with com.amazonaws.
  # Source: the output of `aws ec2 describe-vpc-endpoint-services`
  china = ["autoscaling", "ebs", "ec2", "ecr.api", "ecr.dkr", "eks", "elasticfilesystem", "execute-api", "lambda", "monitoring", "rds", "s3", "sqs", "states", "sts"]
  endpoint_services = { for service in var.endpoints.interface : service => strcontains(service, "amazonaws.") ? service : join(".", [
    data.aws_partition.current.partition == "aws-cn" && contains(local.china, service) ? "cn.com.amazonaws" : "com.amazonaws",
    data.aws_region.current.id, service,
  ]) }
}

resource "aws_vpc_endpoint" "s3" {
  count             = var.endpoints.s3 && length(local.made) > 0 ? 1 : 0
  vpc_id            = local.vpc_id
  vpc_endpoint_type = "Gateway"
  service_name      = "com.amazonaws.${data.aws_region.current.id}.s3"
  route_table_ids   = concat(aws_route_table.public[*].id, [for key in keys(local.private) : aws_route_table.private[key].id])
  tags              = merge({ Name = "${var.name}-s3" }, var.tags)
}

resource "aws_security_group" "endpoints" {
  count       = length(var.endpoints.interface) > 0 ? 1 : 0
  name        = "${var.name}-endpoints"
  description = "Interface endpoints of AWS services"
  vpc_id      = local.vpc_id
  tags        = merge({ Name = "${var.name}-endpoints" }, var.tags)
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  count             = length(var.endpoints.interface) > 0 ? 1 : 0
  security_group_id = aws_security_group.endpoints[0].id
  description       = "HTTPS from the VPC"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = local.ipv4_cidr
}

resource "aws_vpc_security_group_ingress_rule" "endpoints_ipv6" {
  count             = length(var.endpoints.interface) > 0 && local.ipv6 ? 1 : 0
  security_group_id = aws_security_group.endpoints[0].id
  description       = "HTTPS from the VPC"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv6         = local.ipv6_cidr
}

resource "aws_vpc_endpoint" "interface" {
  for_each            = var.endpoints.interface
  vpc_id              = local.vpc_id
  vpc_endpoint_type   = "Interface"
  service_name        = local.endpoint_services[each.key]
  subnet_ids          = local.ids_of_role[var.endpoints.subnets]
  security_group_ids  = [aws_security_group.endpoints[0].id]
  private_dns_enabled = true
  ip_address_type     = var.ip_family == "ipv4" ? "ipv4" : "dualstack"
  tags                = merge({ Name = "${var.name}-${each.key}" }, var.tags)
}
