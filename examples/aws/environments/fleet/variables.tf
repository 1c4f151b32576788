variable "environment" {
  description = "Name of the environment, part of the names of all resources."
  type        = string
  nullable    = false
}

variable "zones" {
  description = "The availability zones, each with an index from 0 to 5. Each zone gets a shard of the same name. The index determines the zone's subnets."
  type        = map(number)
  nullable    = false
}

variable "ipv4_cidr" {
  description = "Address range of the VPC, a /16. Environments need different ranges if their VPCs will be connected."
  type        = string
  nullable    = false

  validation {
    condition     = can(cidrnetmask(var.ipv4_cidr)) && endswith(var.ipv4_cidr, "/16")
    error_message = "ipv4_cidr is an IPv4 network with 16 bits, such as 10.1.0.0/16."
  }
}

variable "images" {
  description = "IDs of the images of the servers and of the VMs. They determine the version of Nstance: promote them from one environment to the next."
  type        = object({ server = string, agent = string })
  nullable    = false
}

variable "server_count" {
  description = "Number of servers per zone: 1, or 2 for a hot standby."
  type        = number
  default     = 1
  nullable    = false
}

variable "server_instance_type" {
  description = "Instance type of the servers."
  type        = string
  default     = "t4g.nano"
  nullable    = false
}

variable "arch" {
  description = "Processor architecture of the servers and the VMs: `arm64` or `amd64`."
  type        = string
  default     = "arm64"
  nullable    = false
}

variable "workers_per_zone" {
  description = "Number of VMs per zone."
  type        = number
  nullable    = false
}

variable "worker_instance_types" {
  description = "Instance types of the VMs. The first one is used while AWS has capacity for it; the others are fallbacks."
  type        = list(string)
  default     = ["t4g.small", "t4g.medium"]
  nullable    = false
}

variable "key_provider" {
  description = "The service that stores the encryption key: `aws-secrets-manager`, or `aws-parameter-store`, which costs nothing."
  type        = string
  default     = "aws-secrets-manager"
  nullable    = false
}

variable "deletion_protection" {
  description = "Refuse to destroy the cluster. If false, `tofu destroy` deletes it, and the bucket with everything in it."
  type        = bool
  default     = true
  nullable    = false
}

variable "config" {
  description = "Changes of the shard's configuration, such as `{ server = { health_check_interval = \"30s\" } }`. They override the example's. See the [reference](../../../../docs/reference/configuration.md#reference)."
  type        = any
  default     = {}
  nullable    = false
}
