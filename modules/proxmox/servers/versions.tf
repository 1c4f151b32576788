terraform {
  required_version = ">= 1.11"

  required_providers {
    proxmox = { source = "bpg/proxmox", version = ">= 0.81, < 1.0" }
  }
}
