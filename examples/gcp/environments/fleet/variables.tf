variable "environment" {
  description = "Name of the environment, part of the names of all resources."
  type        = string
  nullable    = false
}

variable "region" {
  description = "The region of the zones."
  type        = string
  nullable    = false
}

variable "zones" {
  description = "The zones, each with a number from 0 to 12. Each zone gets a shard of the same name. The number determines the leader's address."
  type        = map(number)
  nullable    = false

  validation {
    condition     = alltrue([for zone, n in var.zones : startswith(zone, "${var.region}-") && n >= 0 && n <= 12 && floor(n) == n]) && length(distinct(values(var.zones))) == length(var.zones)
    error_message = "zones are zones of the region, such as ${var.region}-a, with different whole numbers from 0 to 12."
  }
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
  description = "The images of the servers and of the VMs, `projects/…/global/images/…`. They determine the version of Nstance: promote them from one environment to the next."
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
  description = "Machine type of the servers."
  type        = string
  default     = "e2-micro"
  nullable    = false
}

variable "workers_per_zone" {
  description = "Number of VMs per zone."
  type        = number
  nullable    = false
}

variable "worker_instance_types" {
  description = "Machine types of the VMs. The first one is used while Google Cloud has capacity for it; the others are fallbacks."
  type        = list(string)
  default     = ["e2-small", "e2-medium"]
  nullable    = false
}

variable "deletion_protection" {
  description = "Refuse to destroy the shards. If false, `tofu destroy` deletes them, and the bucket with everything in it."
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
