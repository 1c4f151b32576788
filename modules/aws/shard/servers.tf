# The servers: an Auto Scaling group that can replace each of them at any time.

# data.aws_ami says only that there is no result. The postcondition of this data source names the image that was looked
# for.
data "aws_ami_ids" "server" {
  count  = var.server_image.id == null ? 1 : 0
  owners = var.server_image.owners

  filter {
    name   = "name"
    values = [var.server_image.name]
  }

  filter {
    name   = "architecture"
    values = [local.server_architecture]
  }

  lifecycle {
    postcondition {
      condition     = length(self.ids) > 0
      error_message = "No image for server_image: owners ${join(", ", var.server_image.owners)}; name = ${var.server_image.name}; architecture = ${local.server_architecture}."
    }
  }
}

locals {
  server_architecture = var.server_arch == "amd64" ? "x86_64" : "arm64"
}

data "aws_ami" "server" {
  most_recent = true
  owners      = var.server_image.id == null ? var.server_image.owners : null

  filter {
    name   = "image-id"
    values = [var.server_image.id == null ? data.aws_ami_ids.server[0].ids[0] : var.server_image.id]
  }

  filter {
    name   = "architecture"
    values = [local.server_architecture]
  }
}

data "nstance_userdata" "server" {
  role             = "server"
  shard            = var.shard
  bucket           = var.cluster.bucket
  prefix           = var.cluster.prefix == "" ? null : var.cluster.prefix
  region           = var.cluster.region
  leader_interface = aws_network_interface.leader.id
  leader_network = {
    mac_address = aws_network_interface.leader.mac_address
    ipv4        = local.leader_ipv4
    # The first address of a subnet belongs to its router.
    ipv4_gateway = local.leader_ipv4 == null ? null : cidrhost(data.aws_subnet.leader.cidr_block, 1)
    ipv6         = local.leader_ipv6
  }
  extra_args      = length(var.server_args) == 0 ? null : var.server_args
  binaries        = length(var.server_binaries) == 0 ? null : var.server_binaries
  commands_before = length(var.server_commands) == 0 ? null : var.server_commands
  environment     = length(local.server_environment) == 0 ? null : local.server_environment
}

locals {
  server_group = "${local.name}-server"
  server_environment = merge(
    # The default endpoints of AWS support IPv4 only.
    local.server_subnets[0].native ? { AWS_USE_DUALSTACK_ENDPOINT = "true" } : {},
    # Bucket policies may demand that requests ask for the encryption which is the bucket's default anyway.
    var.cluster.kms_key_arn == null ? { NSTANCE_S3_ENCRYPT = "true" } : { NSTANCE_S3_KMS_KEY_ID = var.cluster.kms_key_arn },
    # The unit nstance-server-health reports to this group.
    {
      NSTANCE_SCALING_GROUP     = "aws/${local.server_group}"
      NSTANCE_REPORT_AFTER      = "${var.server_ready_timeout}s"
      NSTANCE_SERVER_GENERATION = local.server_generation
    },
    var.server_environment,
  )
  # This hash changes with everything that rolls the servers: what their launch template and their boot script contain,
  # and their subnets. It is part of the boot script, so its change rolls the servers. nstance_servers_ready waits for
  # a server with this hash. A subnet that becomes public or private rolls the servers, because a running machine keeps
  # the kind of address that it has.
  server_generation = substr(sha256(jsonencode([
    data.aws_ami.server.id, var.server_instance_type, var.server_volume, aws_security_group.server.id, var.server_security_group_ids,
    var.server_args, var.server_binaries, var.server_commands, var.server_environment, var.server_ready_timeout, var.cluster.kms_key_arn,
    var.account.servers[var.shard].instance_profile_arn, aws_network_interface.leader.id, local.leader_ipv4, local.leader_ipv6,
    local.server_subnets, local.server_tags,
  ])), 0, 12)
}

resource "aws_launch_template" "server" {
  name                   = "${local.name}-server"
  description            = "Servers of the Nstance shard ${var.cluster.id}/${var.shard}"
  image_id               = data.aws_ami.server.id
  instance_type          = var.server_instance_type
  user_data              = data.nstance_userdata.server.content_base64
  vpc_security_group_ids = concat([aws_security_group.server.id], var.server_security_group_ids)
  update_default_version = true

  # A server whose machine is shut down is replaced.
  instance_initiated_shutdown_behavior = "terminate"

  iam_instance_profile {
    arn = var.account.servers[var.shard].instance_profile_arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    http_protocol_ipv6          = local.server_subnets[0].native ? "enabled" : "disabled"
  }

  block_device_mappings {
    device_name = data.aws_ami.server.root_device_name

    ebs {
      encrypted             = true
      delete_on_termination = true
      volume_size           = var.server_volume.size
      volume_type           = var.server_volume.type
      kms_key_id            = var.server_volume.kms_key_arn
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]

    content {
      resource_type = tag_specifications.value
      tags          = local.server_tags
    }
  }

  tags = local.tags
}

locals {
  # The servers' own VMs have no tag nstance:managed, so that no server can terminate them.
  server_tags = merge(local.vm_tags, local.tags, { Name = "${local.name}-server", "nstance:server" = var.shard })
}

resource "aws_autoscaling_group" "server" {
  # A new server needs its egress rules immediately.
  depends_on = [aws_vpc_security_group_egress_rule.server_ipv4, aws_vpc_security_group_egress_rule.server_ipv6]

  name                = local.server_group
  min_size            = var.server_count
  max_size            = var.server_count
  desired_capacity    = var.server_count
  vpc_zone_identifier = [for s in local.server_subnets : s.id]

  # An apply that adds servers waits for them, and fails with the reason as soon as EC2 refuses a machine. A new group
  # waits only until its machines run, because the hook below, and the configuration that its servers need, come later.
  wait_for_capacity_timeout = var.wait_for_leader ? "${var.server_ready_timeout + 300}s" : "0"

  health_check_type         = var.health_check.type
  health_check_grace_period = var.health_check.grace_period
  target_group_arns         = aws_lb_target_group.health[*].arn

  launch_template {
    id      = aws_launch_template.server.id
    version = aws_launch_template.server.latest_version
  }

  # A change rolls the servers. An old server is terminated only after a new one is in service, which it is when it is
  # ready. Auto rollback would have no effect: the AWS provider saves the new launch template on the group before it
  # starts the refresh, and a rollback restores what is saved.
  instance_refresh {
    strategy = "Rolling"
    # Auto Scaling itself moves servers to other zones, but not out of a removed subnet of the same zone.
    triggers = ["vpc_zone_identifier"]

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 200
    }
  }

  dynamic "tag" {
    for_each = merge(local.vm_tags, local.tags)

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = false # The launch template sets the tags.
    }
  }
}

# A new server is not in service before it reports that it is ready. If it does not report that in time, its machine is
# terminated, and the old server stays.
resource "aws_autoscaling_lifecycle_hook" "ready" {
  name                   = "nstance-server-ready"
  autoscaling_group_name = aws_autoscaling_group.server.name
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_LAUNCHING"
  default_result         = "ABANDON"
  # A server that cannot become ready stops by itself and logs why. The hook's timeout is for machines on which the
  # server cannot even do that.
  heartbeat_timeout = var.server_ready_timeout + 60
}

# Auto Scaling checks /health only through a load balancer with a listener for it.
resource "aws_lb_target_group" "health" {
  count           = var.health_check.type == "ELB" ? 1 : 0
  name            = "${trim(substr(local.name, 0, 24), "-")}-${substr(sha1(local.server_subnets[0].native ? "${local.name}/ipv6" : local.name), 0, 7)}"
  vpc_id          = var.network.vpc_id
  target_type     = "instance"
  protocol        = "TCP"
  port            = local.ports.health
  ip_address_type = local.server_subnets[0].native ? "ipv6" : "ipv4"
  # No client connects through this load balancer.
  deregistration_delay = 0
  tags                 = local.tags

  health_check {
    protocol            = "HTTP"
    port                = "traffic-port"
    path                = "/health"
    matcher             = "200"
    interval            = 10
    timeout             = 6
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }

  lifecycle {
    # It leaves the auto-scaling group before it is destroyed. A replacement has another name.
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "health" {
  count             = var.health_check.type == "ELB" ? 1 : 0
  load_balancer_arn = var.health_check.load_balancer_arn
  port              = var.health_check.listener_port
  protocol          = "TCP"
  tags              = local.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.health[0].arn
  }
}
