# `packer init .` installs these plugins. Packer 1.9.4 contains the same versions, with which scripts/images-check.sh
# validates the templates.
packer {
  required_version = ">= 1.9.4"

  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "= 1.3.2"
    }
    googlecompute = {
      source  = "github.com/hashicorp/googlecompute"
      version = "= 1.1.0"
    }
    qemu = {
      source  = "github.com/hashicorp/qemu"
      version = "= 1.0.9"
    }
  }
}
