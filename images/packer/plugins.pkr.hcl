# `packer init .` installs these plugins. Packer 1.9 contains them.
packer {
  required_version = ">= 1.9.4"

  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3.2"
    }
    qemu = {
      source  = "github.com/hashicorp/qemu"
      version = ">= 1.0.9"
    }
  }
}
