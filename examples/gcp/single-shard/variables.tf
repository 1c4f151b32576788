variable "project" {
  description = "The Google Cloud project. Default: the project in the environment variable GOOGLE_PROJECT."
  type        = string
  default     = null
}

variable "region" {
  description = "The region of all resources."
  type        = string
  default     = "us-central1"
  nullable    = false
}

variable "zone" {
  description = "The zone, which is also the shard's name."
  type        = string
  default     = "us-central1-a"
  nullable    = false

  validation {
    condition     = startswith(var.zone, "${var.region}-")
    error_message = "zone is one of the region's, such as ${var.region}-a."
  }
}

variable "cluster" {
  description = "Name of the cluster, and prefix of the names of all resources."
  type        = string
  default     = "example"
  nullable    = false
}

variable "bucket" {
  description = "Name of the bucket. Default: a name made of the cluster's name, the project and the region."
  type        = string
  default     = null
}

variable "encryption_key" {
  description = "Full name of the secret in Secret Manager that contains the encryption key, `projects/…/secrets/…`. If it is null, there is no encryption key, and Secret Manager keeps the cluster's secrets."
  type        = string
  default     = null
}

variable "nat" {
  description = "Create a Cloud NAT gateway, which is the largest part of the cost. If false, the servers and the VMs reach only Google's APIs, not the internet."
  type        = bool
  default     = true
  nullable    = false
}

variable "image_project" {
  description = "Project that owns the images of servers and VMs (see images/packer). Default: the project of the cluster."
  type        = string
  default     = null
}

variable "server_image" {
  description = "The servers' image, `projects/…/global/images/…`. Default: the newest image of the family nstance-server-amd64."
  type        = string
  default     = null
}

variable "agent_image" {
  description = "The VMs' image, `projects/…/global/images/…`. Default: the newest image called nstance-agent-amd64-*."
  type        = string
  default     = null
}

variable "server_ready_timeout" {
  description = "Number of seconds that a new server may take to become healthy. After this time, the instance group replaces the server's machine."
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

variable "leader_kind" {
  description = "How the leader's address moves to a new leader: as an alias address of the new leader's VM (`alias`), or with a load balancer (`load_balancer`). Default: `load_balancer` for two servers, `alias` for one."
  type        = string
  default     = null
}

variable "server_instance_type" {
  description = "Machine type of the servers."
  type        = string
  default     = "e2-micro"
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
  description = "Machine types of the VMs. The first one is used while Google Cloud has capacity for it; the others are fallbacks."
  type        = list(string)
  default     = ["e2-small", "e2-medium"]
  nullable    = false

  validation {
    condition     = length(var.worker_instance_types) > 0
    error_message = "worker_instance_types has to name at least one type."
  }
}

variable "worker_args" {
  description = "Additional fields for the body of Compute Engine's instances.insert for the VMs. If you change them, the leader replaces the VMs, one at a time."
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

variable "labels" {
  description = "Labels of the bucket and the servers."
  type        = map(string)
  default     = {}
  nullable    = false
}
