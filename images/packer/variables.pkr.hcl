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

variable "modules" {
  description = "Path of a file with the output of `go version -m` for the binary. The image's list of software has these modules."
  type        = string
}

variable "commit" {
  description = "Commit of the binary's source, in full, with -dirty if files differ from it."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{40}(-dirty)?$", var.commit))
    error_message = "The commit must have 40 hexadecimal digits, and may end in -dirty."
  }
}

variable "version" {
  description = "Version of the binary; part of the image's name."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z.-]*$", var.version))
    error_message = "The version may have letters, digits, dots and dashes."
  }
}

variable "run" {
  description = "Name of the run of `make cloud-test` that builds the image: everything that the build makes has it. Empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.run == "" || can(regex("^ct-[a-z0-9]{4,12}$", var.run))
    error_message = "The run must be ct- and 4 to 12 lower-case letters or digits."
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
  description = "Name of the source image, of which there must be one. ARCH stands for the architecture."
  type        = string
  default     = "debian-12-ARCH-20261006-2623"
}

variable "aws_ssm_agent" {
  description = "Version of the agent of AWS Systems Manager to install, and the SHA-256 of its Debian package for the architecture. Null: the image has no such agent."
  type        = object({ version = string, sha256 = string })
  default     = null

  validation {
    condition     = var.aws_ssm_agent == null ? true : can(regex("^[0-9]+(\\.[0-9]+)+$", var.aws_ssm_agent.version)) && can(regex("^[0-9a-f]{64}$", var.aws_ssm_agent.sha256))
    error_message = "The aws_ssm_agent must have a version such as 3.3.1611.0, and a sha256 of 64 hexadecimal digits."
  }
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

# Google Cloud.

variable "gcp_project" {
  description = "Project in which the image is made."
  type        = string
  default     = "my-project"
}

variable "gcp_zone" {
  description = "Zone of the machine that the image is made on. It must have T2A machines for arm64."
  type        = string
  default     = "us-central1-a"
}

variable "gcp_subnetwork" {
  description = "Subnet of the machine that the image is made on; empty: that of the default network."
  type        = string
  default     = ""
}

variable "gcp_base_names" {
  description = "Names of the source images in the project debian-cloud, by architecture."
  type        = map(string)
  default = {
    amd64 = "debian-12-bookworm-v20260114"
    arm64 = "debian-12-bookworm-arm64-v20260114"
  }
}

# QEMU.

variable "qemu_base" {
  description = "URL or path of the source image, with cloud-init. ARCH stands for the architecture."
  type        = string
  default     = "https://cloud.debian.org/images/cloud/bookworm/20261006-2623/debian-12-generic-ARCH-20261006-2623.qcow2"
}

variable "qemu_base_checksums" {
  description = "Checksums of the source images by architecture, such as sha512:... or file:https://..."
  type        = map(string)
  default = {
    amd64 = "sha512:f631afb1d8123a29779f720f7f08a97e9f2ce5f5c705b8d9f753df8ed0c3afddeb34e4f254dfa41a6330e9a637387c80a8fe453d789446f9d8be7d7714d0ce7e"
    arm64 = "sha512:991f0dd77ee442eb2406568fc27c537190af0c78ab211b0e2adcf568cd203aebf696b94a05e64c7e00d3e05e0e532fdd941311e34ef862ad06bc1bc69a92a3fb"
  }
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
