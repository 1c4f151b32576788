variable "cluster" {
  description = "The cluster whose shards get service accounts. The value is the output `cluster` of the module `cluster`."
  type = object({
    id     = string
    bucket = string
    prefix = optional(string, "")
    encryption_key = optional(object({
      provider = string
      source   = string
    }))
    primary = optional(object({ id = string }))
    secrets = optional(object({
      provider = string
      prefix   = string
    }), { provider = "object-storage", prefix = "" })
  })
  nullable = false

  validation {
    condition     = var.cluster.secrets.provider == "object-storage" ? var.cluster.encryption_key != null || var.cluster.primary != null : var.cluster.secrets.provider == "google-secret-manager" && length(var.cluster.secrets.prefix) > 0
    error_message = "cluster.secrets is in the object storage, with an encryption_key, or in google-secret-manager, with a prefix: without one the servers could read every secret of the project."
  }
}

variable "shards" {
  description = <<-TEXT
    The shards, by name. The servers of each shard get a service account with permissions for this shard only.

    * `zone`: the shard's zone. Default: the shard's name.
    * `secrets`: names of the secrets that the shard's templates use. A `*` at the end of a name stands for any characters. Default: all secrets of the cluster.
    * `service_accounts`: emails of service accounts that the shard's VMs may have, in addition to that of the agents. Templates name them in `args`.
  TEXT
  type = map(object({
    zone             = optional(string)
    secrets          = optional(list(string), ["*"])
    service_accounts = optional(list(string), [])
  }))
  nullable = false

  validation {
    condition     = alltrue([for shard in keys(var.shards) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", shard)) && length(shard) <= 32 && !strcontains(shard, "--")])
    error_message = "shards has names of shards: lower-case letters, digits and single dashes inside, at most 32 characters, such as \"us-central1-a\"."
  }

  validation {
    condition     = alltrue(flatten([for grant in values(var.shards) : [for name in grant.secrets : can(regex("^[A-Za-z0-9_.-]*\\*?$", name)) && length(name) > 0]]))
    error_message = "shards[...].secrets has names of secrets, or beginnings of names with \"*\", such as \"web-*\"."
  }

  validation {
    condition     = alltrue(flatten([for grant in values(var.shards) : [for email in grant.service_accounts : can(regex("^[^@/]+@[a-z0-9.-]+$", email))]]))
    error_message = "shards[...].service_accounts has emails of service accounts, such as \"web@my-project.iam.gserviceaccount.com\"."
  }
}

variable "name" {
  description = "Prefix of the names of service accounts and roles. Default: the cluster's name."
  type        = string
  default     = null

  validation {
    condition     = var.name == null ? true : can(regex("^[a-z][a-z0-9-]{0,39}$", var.name))
    error_message = "name has lower-case letters, digits and dashes, at most 40 of them, and begins with a letter."
  }
}

variable "agent_service_account" {
  description = "Make a service account without permissions for the VMs. By default VMs have no service account."
  type        = bool
  default     = false
  nullable    = false
}

variable "load_balancers" {
  description = "Permit the servers to add VMs to load balancers' instance groups, and to read backend services and the health of their VMs. The permission is for all unmanaged instance groups and regional backend services of the project."
  type        = bool
  default     = false
  nullable    = false
}
