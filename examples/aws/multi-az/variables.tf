variable "region" {
  description = "The region of all resources."
  type        = string
  default     = "us-west-2"
  nullable    = false
}

variable "zones" {
  description = "The availability zones, each with an index from 0 to 5. Each zone gets a shard of the same name. The index determines the zone's subnets. Do not change the index of a zone when you add or remove others."
  type        = map(number)
  default     = { us-west-2a = 0, us-west-2b = 1, us-west-2c = 2 }
  nullable    = false

  validation {
    condition     = length(var.zones) >= 1 && alltrue([for zone in keys(var.zones) : startswith(zone, var.region)])
    error_message = "zones are at least one of the region's, such as ${var.region}a."
  }

  validation {
    condition     = alltrue([for i in values(var.zones) : contains([0, 1, 2, 3, 4, 5], i)]) && length(distinct(values(var.zones))) == length(var.zones)
    error_message = "zones have different indexes from 0 to 5."
  }
}

variable "cluster" {
  description = "Name of the cluster, and prefix of the names of all resources."
  type        = string
  default     = "example"
  nullable    = false
}

variable "bucket" {
  description = "Name of the bucket. Default: a name made of the cluster's name, the account's number and the region."
  type        = string
  default     = null
}

variable "key_provider" {
  description = "The service that stores the encryption key: `aws-secrets-manager`, or `aws-parameter-store`, which costs nothing."
  type        = string
  default     = "aws-secrets-manager"
  nullable    = false
}

variable "nat" {
  description = "NAT gateways for private subnets: `each` (one in each zone), `one` (only in the zone with the lowest index), or `none`. The gateways are the largest part of the cost. With `one`, VMs of all zones lose the internet when that zone fails. With `none`, the servers have public addresses, and the VMs cannot reach the internet."
  type        = string
  default     = "each"
  nullable    = false

  validation {
    condition     = contains(["one", "each", "none"], var.nat)
    error_message = "nat is \"one\", \"each\" or \"none\"."
  }
}

variable "image_owners" {
  description = "AWS accounts that own the images to consider, which images/packer makes."
  type        = list(string)
  default     = ["self"]
  nullable    = false
}

variable "server_ami" {
  description = "ID of the servers' image. Default: the newest image called nstance-server-*."
  type        = string
  default     = null
}

variable "agent_ami" {
  description = "ID of the VMs' image. Default: the newest image called nstance-agent-*."
  type        = string
  default     = null
}

variable "server_count" {
  description = "Number of servers of each shard. Set 1 for no standby, 2 for a hot standby, or 0 to stop all servers."
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

variable "server_arch" {
  description = "Processor architecture of the servers: `arm64` or `amd64`."
  type        = string
  default     = "arm64"
  nullable    = false
}

variable "web_count" {
  description = "Number of VMs in the group `web` of each shard."
  type        = number
  default     = 1
  nullable    = false

  validation {
    condition     = var.web_count >= 0 && floor(var.web_count) == var.web_count
    error_message = "web_count is a whole number, 0 or more."
  }
}

variable "web_instance_types" {
  description = "Instance types of the VMs. The first one is used while AWS has capacity for it; the others are fallbacks."
  type        = list(string)
  default     = ["t4g.small", "t4g.medium"]
  nullable    = false

  validation {
    condition     = length(var.web_instance_types) > 0
    error_message = "web_instance_types has to name at least one type."
  }
}

variable "web_arch" {
  description = "Processor architecture of the VMs: `arm64` or `amd64`."
  type        = string
  default     = "arm64"
  nullable    = false
}

variable "web_args" {
  description = "Additional arguments of EC2's RunInstances for the VMs. If you change them, the leader of each shard replaces the shard's VMs, one at a time."
  type        = any
  default     = {}
  nullable    = false
}

variable "web_port" {
  description = "The port on which the service of the VMs listens."
  type        = number
  default     = 8080
  nullable    = false
}

variable "web_health_check" {
  description = "How the load balancer checks the health of a VM: by an HTTP request to `web_port` if `path` is set, or by a TCP connection to `web_port` if not."
  type = object({
    path     = optional(string)
    interval = optional(number)
  })
  default  = {}
  nullable = false
}

variable "web_commands" {
  description = "Lines of `sh` that start the VMs' service, for images that do not start it themselves."
  type        = list(string)
  default     = ["systemd-run --unit=web --property=Restart=always python3 -m http.server 8080 --directory /usr/share/doc"]
  nullable    = false
}

variable "config" {
  description = "Changes of the shard's configuration, such as `{ server = { health_check_interval = \"30s\" } }`. They override the example's. See the [reference](../../../docs/reference/configuration.md#reference)."
  type        = any
  default     = {}
  nullable    = false
}

variable "wait_for_leader" {
  description = "Let `tofu apply` wait until a server of each shard leads and has applied the shard's configuration."
  type        = bool
  default     = true
  nullable    = false
}

variable "force_destroy" {
  description = "Let `tofu destroy` delete the bucket with everything in it."
  type        = bool
  default     = false
  nullable    = false
}

variable "tags" {
  description = "Tags of everything that can have tags."
  type        = map(string)
  default     = {}
  nullable    = false
}
