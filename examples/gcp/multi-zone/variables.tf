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

variable "zones" {
  description = "The zones, each with a number. Each zone gets a shard of the same name. The number determines the address of the shard's leader. Do not change the number of a zone when you add or remove others."
  type        = map(number)
  default     = { us-central1-a = 0, us-central1-b = 1, us-central1-c = 2 }
  nullable    = false

  validation {
    condition     = alltrue([for zone, n in var.zones : startswith(zone, "${var.region}-") && n >= 0 && n < 14 && floor(n) == n]) && length(distinct(values(var.zones))) == length(var.zones)
    error_message = "zones are zones of the region, such as ${var.region}-a, with different whole numbers from 0 to 13."
  }
}

variable "server_count" {
  description = "Number of servers of each shard. Set 1 for no standby, 2 for a hot standby, or 0 to stop all servers."
  type        = number
  default     = 2
  nullable    = false
}

variable "allow_ipv4_cidrs" {
  description = "Addresses that may use the load balancer."
  type        = list(string)
  default     = ["0.0.0.0/0"]
  nullable    = false
}

variable "worker_commands" {
  description = "Lines of `sh` that start the VMs' service on port 8080, for images that do not start it themselves."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "load_balancer_health" {
  description = "Let the leaders replace VMs that the load balancer reports as unhealthy. The VMs' service must answer on port 8080."
  type        = bool
  default     = false
  nullable    = false
}
