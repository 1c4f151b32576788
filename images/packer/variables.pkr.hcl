variable "role" {
  description = "Program in the image: server or agent."
  type        = string

  validation {
    condition     = contains(["server", "agent"], var.role)
    error_message = "The role must be server or agent."
  }
}

variable "arch" {
  description = "Processor architecture: arm64 or amd64."
  type        = string
  default     = "arm64"

  validation {
    condition     = contains(["arm64", "amd64"], var.arch)
    error_message = "The arch must be arm64 or amd64."
  }
}

variable "binary" {
  description = "Path of nstance-server or nstance-agent, built for linux and the architecture."
  type        = string
}

variable "version" {
  description = "Version of the binary; part of the image's name."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z.-]*$", var.version))
    error_message = "The version may have letters, digits, dots and dashes."
  }
}

# AWS.

variable "aws_region" {
  description = "Region in which the image is made."
  type        = string
  default     = "us-west-2"
}

variable "aws_copy_regions" {
  description = "Regions to which it is copied."
  type        = list(string)
  default     = []
}

variable "aws_subnet_id" {
  description = "Public subnet of the machine that the image is made on; empty: one of the default VPC."
  type        = string
  default     = ""
}

variable "aws_base_owner" {
  description = "Account that owns the source image: Debian's."
  type        = string
  default     = "136693071363"
}

variable "aws_base_name" {
  description = "Name of the source image; the newest that matches is used. ARCH stands for the architecture."
  type        = string
  default     = "debian-12-ARCH-*"
}

variable "aws_users" {
  description = "Accounts that may use the image."
  type        = list(string)
  default     = []
}

variable "aws_encrypt" {
  description = "Encrypt the image's snapshot with the account's default key. Encrypted images cannot be shared."
  type        = bool
  default     = false
}

# QEMU.

variable "qemu_base" {
  description = "URL or path of the source image, with cloud-init. ARCH stands for the architecture."
  type        = string
  default     = "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-generic-ARCH.qcow2"
}

variable "qemu_base_checksum" {
  description = "Checksum of that, such as sha512:… or file:https://…"
  type        = string
  default     = "file:https://cloud.debian.org/images/cloud/bookworm/latest/SHA512SUMS"
}

variable "qemu_accelerator" {
  description = "kvm, hvf, or tcg where neither is available."
  type        = string
  default     = "kvm"

  validation {
    condition     = contains(["kvm", "hvf", "tcg"], var.qemu_accelerator)
    error_message = "The qemu_accelerator must be kvm, hvf or tcg."
  }
}

variable "qemu_disk_size" {
  description = "Size of the disk."
  type        = string
  default     = "4G"
}

variable "qemu_output" {
  description = "Directory for the image; must not exist."
  type        = string
  default     = "output"
}
