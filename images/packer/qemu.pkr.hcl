source "qemu" "nstance" {
  vm_name          = "${local.name}.qcow2"
  output_directory = var.qemu_output
  format           = "qcow2"
  disk_compression = true
  disk_size        = var.qemu_disk_size
  disk_image       = true
  iso_url          = replace(var.qemu_base, "ARCH", var.arch)
  iso_checksum     = var.qemu_base_checksums[var.arch]

  qemu_binary  = var.arch == "arm64" ? "qemu-system-aarch64" : "qemu-system-x86_64"
  machine_type = var.arch == "arm64" ? "virt" : "q35"
  accelerator  = var.qemu_accelerator
  cpus         = 2
  memory       = 1024
  headless     = true
  net_device   = "virtio-net"

  # A cloud-init seed (NoCloud). It creates a user with a password for this build. The user is deleted before the image
  # is finished.
  cd_label = "cidata"
  cd_content = {
    "meta-data" = "instance-id: ${local.name}\n"
    "user-data" = <<-YAML
      #cloud-config
      ssh_pwauth: true
      users:
        - name: packer
          sudo: ALL=(ALL) NOPASSWD:ALL
          shell: /bin/sh
          lock_passwd: false
          plain_text_passwd: ${local.password}
    YAML
  }
  ssh_username     = "packer"
  ssh_password     = local.password
  ssh_timeout      = "15m"
  shutdown_command = "sudo sh -c 'rm -f /etc/sudoers.d/90-cloud-init-users /etc/ssh/sshd_config.d/50-cloud-init.conf; userdel -rf packer; poweroff'"
}
