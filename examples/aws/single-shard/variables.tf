variable "region" {
  description = "The region of all resources."
  type        = string
  default     = "us-west-2"
  nullable    = false
}

variable "zone" {
  description = "The availability zone, which is also the shard's name."
  type        = string
  default     = "us-west-2a"
  nullable    = false

  validation {
    condition     = startswith(var.zone, var.region)
    error_message = "zone is one of the region's, such as ${var.region}a."
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
  description = "Create a NAT gateway for private subnets. It is the largest part of the cost. If false, the servers have public addresses, and the VMs cannot reach the internet."
  type        = bool
  default     = true
  nullable    = false
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

variable "server_ready_timeout" {
  description = "Time limit in seconds for a new server to become ready, and for an unhealthy server to recover. After this time, the auto-scaling group replaces the server's machine."
  type        = number
  default     = 600
  nullable    = false
}

variable "server_count" {
  description = "Number of servers. Set 1 for no standby, 2 for a hot standby, or 0 to stop all servers."
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

variable "worker_count" {
  description = "Number of VMs in the group `workers`."
  type        = number
  default     = 2
  nullable    = false

  validation {
    condition     = var.worker_count >= 0 && floor(var.worker_count) == var.worker_count
    error_message = "worker_count is a whole number, 0 or more."
  }
}

variable "worker_instance_types" {
  description = "Instance types of the VMs. The first one is used while AWS has capacity for it; the others are fallbacks."
  type        = list(string)
  default     = ["t4g.small", "t4g.medium"]
  nullable    = false

  validation {
    condition     = length(var.worker_instance_types) > 0
    error_message = "worker_instance_types has to name at least one type."
  }
}

variable "worker_arch" {
  description = "Processor architecture of the VMs: `arm64` or `amd64`."
  type        = string
  default     = "arm64"
  nullable    = false
}

variable "worker_args" {
  description = "Additional arguments of EC2's RunInstances for the VMs. If you change them, the leader replaces the VMs, one at a time."
  type        = any
  default     = {}
  nullable    = false
}

variable "worker_vars" {
  description = "Values of the variables that templates use. The example's template uses one variable, `greeting`, whose value agents write to app.env on the VMs. The leader sends changed values to running VMs."
  type        = map(string)
  default     = { greeting = "hello" }
  nullable    = false
}

variable "config" {
  description = "Changes of the shard's configuration, such as `{ server = { health_check_interval = \"30s\" } }`. They override the example's. See the [reference](../../../docs/reference/configuration.md#reference)."
  type        = any
  default     = {}
  nullable    = false
}

variable "wait_for_leader" {
  description = "Let `tofu apply` wait until a server leads and has applied the shard's configuration."
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
