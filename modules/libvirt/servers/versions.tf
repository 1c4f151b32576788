terraform {
  required_version = ">= 1.11"

  required_providers {
    libvirt = { source = "dmacvicar/libvirt", version = ">= 0.8.3, < 0.9" }
  }
}
