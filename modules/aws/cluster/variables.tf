variable "cluster_id" {
  description = "Name of the cluster: lower-case letters, digits and single dashes, at most 30 characters."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", var.cluster_id)) && length(var.cluster_id) <= 30 && !strcontains(var.cluster_id, "--")
    error_message = "cluster_id has lower-case letters, digits and single dashes inside, at most 30 characters, such as \"example\"."
  }
}

variable "primary" {
  description = "The cluster's bucket, if it is in another cloud: the output `primary` of the module `cluster` there. This module then makes only the bucket of the shards in this cloud, without CA and encryption key. See docs/start/multi-cloud.md."
  type = object({
    id = string
    storage = object({
      provider = string
      bucket   = string
      prefix   = optional(string)
      region   = optional(string)
      endpoint = optional(string)
    })
    secrets = object({
      provider   = string
      prefix     = optional(string)
      project_id = optional(string)
    })
    encryption_key = optional(object({
      provider = string
      source   = string
    }))
  })
  default = null
}

variable "bucket_name" {
  description = "Name of the bucket, which must be unique among all buckets of AWS. Default: a name made of the cluster's name, the account's number and the region."
  type        = string
  default     = null

  validation {
    condition     = var.bucket_name == null ? true : can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket_name))
    error_message = "bucket_name has 3 to 63 lower-case letters, digits, dots and dashes, and begins and ends with a letter or digit."
  }
}

variable "prefix" {
  description = "Prefix of the names of all objects in the bucket, for a bucket that has other uses too. The prefix has no slash at either end."
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = var.prefix == "" || can(regex("^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", var.prefix))
    error_message = "prefix has letters, digits, \"_\", \".\" and \"-\", with single slashes inside, such as \"clusters/example\"."
  }
}

variable "versioning" {
  description = "Keep earlier versions of objects in the bucket, so that a deleted configuration, CA or secret can be restored. Servers often change their own documents, so the bucket keeps earlier versions of these documents for only a day."
  type        = bool
  default     = true
  nullable    = false
}

variable "noncurrent_version_days" {
  description = "Number of days for which the bucket keeps earlier versions of objects."
  type        = number
  default     = 90
  nullable    = false

  validation {
    condition     = var.noncurrent_version_days >= 1 && floor(var.noncurrent_version_days) == var.noncurrent_version_days
    error_message = "noncurrent_version_days is a whole number, 1 or more. To keep no earlier versions set versioning = false."
  }
}

variable "kms_key_arn" {
  description = "ARN of a KMS key. It encrypts the bucket, and the secret in which the encryption key is stored. Default: AWS's own keys."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null ? true : can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/", var.kms_key_arn))
    error_message = "kms_key_arn is the ARN of a key, such as arn:aws:kms:us-west-2:123456789012:key/…; an alias is not accepted, because policies name the key itself."
  }
}

variable "encryption_key" {
  description = <<-TEXT
    The key that seals the cluster's secrets in the bucket. It is generated at random, and neither a plan nor the state contains it.

    * `provider`: the service that holds the key, `aws-secrets-manager` or `aws-parameter-store` (free of charge).
    * `version`: number in the name of the key's secret. A new number makes a new key.

    A change of `encryption_key.provider` or `encryption_key.version` changes the key. See "Changing the encryption key" above.
  TEXT
  type = object({
    provider = optional(string, "aws-secrets-manager")
    version  = optional(number, 1)
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains(["aws-secrets-manager", "aws-parameter-store"], var.encryption_key.provider)
    error_message = "encryption_key.provider is \"aws-secrets-manager\" or \"aws-parameter-store\"."
  }

  validation {
    condition     = var.encryption_key.version >= 1 && floor(var.encryption_key.version) == var.encryption_key.version
    error_message = "encryption_key.version is a whole number, 1 or more."
  }
}

variable "ca_early_renewal" {
  description = "Time before the CA's expiry at which its replacement begins, such as \"90d\". From then on, each apply does the next steps of the replacement, as far as they are possible at that time. By default, applies do not replace the CA. This variable is only for clusters with secrets in the bucket."
  type        = string
  default     = null
}

variable "secrets" {
  description = <<-TEXT
    Where the cluster's secrets are stored: the CA key, the nonce key and your own secrets.

    * `provider`: with `object-storage`, secrets are in the bucket, sealed with the encryption key. `aws-secrets-manager` and `aws-parameter-store` need no
      encryption key: the first leader creates the CA in the service, and there is no `nstance_cluster`.
    * `prefix`: prefix of the secrets' names in the service. Default: `nstance/CLUSTER/`, and `/nstance/CLUSTER/` in Parameter Store.
  TEXT
  type = object({
    provider = optional(string, "object-storage")
    prefix   = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains(["object-storage", "aws-secrets-manager", "aws-parameter-store"], var.secrets.provider)
    error_message = "secrets.provider is \"object-storage\", \"aws-secrets-manager\" or \"aws-parameter-store\"."
  }

  validation {
    condition     = var.secrets.prefix == null ? true : can(regex("^/?([A-Za-z0-9_.-]+/)+$", var.secrets.prefix)) && startswith(var.secrets.prefix, "/") == (var.secrets.provider == "aws-parameter-store") && var.secrets.provider != "object-storage"
    error_message = "secrets.prefix ends with a slash, such as \"nstance/example/\", and begins with one in Parameter Store only. In the bucket, secrets have the bucket's prefix."
  }
}

variable "deletion_protection" {
  description = "Refuse every plan that destroys the cluster, until an apply has set this variable to `false`. This protects only clusters with secrets in the bucket, because other clusters have no resource `nstance_cluster`."
  type        = bool
  default     = false
  nullable    = false
}

variable "force_destroy" {
  description = "If true, `tofu destroy` deletes the bucket with all objects, and deletes the encryption key so that it cannot be restored. If false, destroy fails while the bucket has objects or earlier versions, and a deleted encryption key can be restored for 30 days."
  type        = bool
  default     = false
  nullable    = false
}

variable "tags" {
  description = "Tags of all resources of this module that can have tags."
  type        = map(string)
  default     = {}
  nullable    = false
}
