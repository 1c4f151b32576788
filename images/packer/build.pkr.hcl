# Images of nstance-server and nstance-agent. See README.md.

locals {
  name = "nstance-${var.role}-${var.version}-${var.arch}-${formatdate("YYYYMMDDhhmmss", timestamp())}"
  # The tag and label by which a run of `make cloud-test` finds what it has made.
  run = var.run == "" ? {} : { nstance-cloud-test = var.run }
  tags = merge({
    Name              = local.name
    "nstance:image"   = var.role
    "nstance:version" = var.version
    "nstance:commit"  = var.commit
  }, local.run)
  # The password of the user as which Packer logs in under QEMU. It is unique to this build.
  password  = uuidv4()
  platforms = { amazon-ebs = "aws", googlecompute = "gcp", qemu = "qemu" }

  ssm_agent = var.aws_ssm_agent == null ? "" : "${var.aws_ssm_agent.version} ${var.aws_ssm_agent.sha256}"

  # Names and labels of Google Cloud have no dots, and at most 63 characters.
  gcp_version = lower(replace(var.version, ".", "-"))
  gcp_name    = "nstance-${var.role}-${var.arch}-${formatdate("YYYYMMDDhhmmss", timestamp())}"
  gcp_labels  = merge({ nstance-image = var.role, nstance-version = local.gcp_version, nstance-commit = substr(var.commit, 0, 40) }, local.run)

  # The names of the source images.
  bases = {
    amazon-ebs    = replace(var.aws_base_name, "ARCH", var.arch)
    googlecompute = var.gcp_base_names[var.arch]
    qemu          = basename(replace(var.qemu_base, "ARCH", var.arch))
  }
}

build {
  sources = ["source.amazon-ebs.nstance", "source.googlecompute.nstance", "source.qemu.nstance"]

  # Debian's cloud-init must have finished using apt. The images for Google Cloud have no cloud-init.
  provisioner "shell" {
    inline = ["! command -v cloud-init >/dev/null || cloud-init status --wait >/dev/null || [ $? -eq 2 ]", "mkdir -p /tmp/nstance"]
  }
  provisioner "file" {
    source      = "${path.root}/files"
    destination = "/tmp/nstance"
  }
  provisioner "file" {
    source      = var.binary
    destination = "/tmp/nstance/nstance-${var.role}"
  }
  provisioner "file" {
    source      = var.modules
    destination = "/tmp/nstance/modules"
  }
  provisioner "shell" {
    script          = "${path.root}/provision.sh"
    execute_command = "chmod +x {{ .Path }}; sudo env {{ .Vars }} {{ .Path }}"
    env = {
      NSTANCE_ROLE      = var.role
      NSTANCE_PLATFORM  = local.platforms[source.type]
      NSTANCE_BINARY    = "/tmp/nstance/nstance-${var.role}"
      NSTANCE_FILES     = "/tmp/nstance/files"
      NSTANCE_MODULES   = "/tmp/nstance/modules"
      NSTANCE_VERSION   = var.version
      NSTANCE_COMMIT    = var.commit
      NSTANCE_BASE      = local.bases[source.type]
      NSTANCE_SSM_AGENT = local.ssm_agent
    }
  }
}
