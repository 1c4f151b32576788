source "amazon-ebs" "nstance" {
  region      = var.aws_region
  ami_regions = var.aws_copy_regions
  ami_users   = var.aws_users
  subnet_id   = var.aws_subnet_id != "" ? var.aws_subnet_id : null

  # The module shard finds images by this name.
  ami_name        = local.name
  ami_description = "nstance-${var.role} ${var.version} on Debian, ${var.arch}"
  instance_type   = var.arch == "arm64" ? "t4g.small" : "t3.small"
  ssh_username    = "admin"

  # Packer's temporary key must not be in the image.
  temporary_key_pair_type   = "ed25519"
  ssh_clear_authorized_keys = true

  source_ami_filter {
    owners = [var.aws_base_owner]
    filters = {
      name                = local.bases.amazon-ebs
      architecture        = var.arch == "arm64" ? "arm64" : "x86_64"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }

  ena_support  = true
  imds_support = "v2.0"
  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }
  encrypt_boot = var.aws_encrypt

  launch_block_device_mappings {
    device_name           = "/dev/xvda"
    volume_size           = 8
    volume_type           = "gp3"
    delete_on_termination = true
  }

  run_tags        = local.tags
  run_volume_tags = local.tags
  tags            = merge(local.tags, { base = "{{ .SourceAMIName }}" })
  snapshot_tags   = local.tags
}
