variable "cluster_id" {
  description = "Name of the cluster: a lower-case letter, then lower-case letters, digits and single dashes, at most 30 characters."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]*[a-z0-9])?$", var.cluster_id)) && length(var.cluster_id) <= 30 && !strcontains(var.cluster_id, "--")
    error_message = "cluster_id has lower-case letters, digits and single dashes inside, at most 30 characters, and begins with a letter, as names of Google Cloud do, such as \"example\"."
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
  description = "Name of the bucket, which must be unique among all buckets of Google Cloud. Default: a name made of the cluster's name, the project and the location."
  type        = string
  default     = null

  validation {
    condition     = var.bucket_name == null ? true : can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket_name))
    error_message = "bucket_name has 3 to 63 lower-case letters, digits, dots and dashes, and begins and ends with a letter or digit."
  }
}

variable "location" {
  description = "Location of the bucket. Default: the region of the Google provider."
  type        = string
  default     = null
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

variable "kms_key_name" {
  description = "Name of the Cloud KMS key with which the bucket is encrypted, such as `projects/…/locations/…/keyRings/…/cryptoKeys/…`. Default: Google's own keys."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_name == null ? true : can(regex("^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$", var.kms_key_name))
    error_message = "kms_key_name is the name of a key, such as projects/my-project/locations/us-central1/keyRings/nstance/cryptoKeys/state."
  }
}

variable "encryption_key" {
  description = <<-TEXT
    The key that seals the cluster's secrets in the bucket.

    * `source`: the whole name of a secret in Secret Manager that holds the encryption key, `projects/…/secrets/…`. See "Encryption key" above.

    The encryption key is required unless `secrets.provider` is `google-secret-manager`.
  TEXT
  type = object({
    source = string
  })
  default = null

  validation {
    condition     = var.encryption_key == null ? true : can(regex("^projects/[^/]+/secrets/[A-Za-z0-9_-]+(/versions/[^/]+)?$", var.encryption_key.source))
    error_message = "encryption_key.source is the whole name of a secret, such as projects/my-project/secrets/example-encryption-key."
  }

  validation {
    condition     = (var.encryption_key != null) == (var.secrets.provider == "object-storage" && var.primary == null)
    error_message = "encryption_key names a secret that holds the key: openssl rand -base64 32 | tr -d '\\n' | gcloud secrets create NAME --data-file=-. It is for secrets in this bucket only."
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

    * `provider`: with `object-storage`, secrets are in the bucket, sealed with the encryption key. `google-secret-manager` needs no encryption key: the
      first leader creates the CA in Secret Manager, and there is no `nstance_cluster`.
    * `prefix`: prefix of the secrets' names in Secret Manager. Default: `nstance-CLUSTER-`.
  TEXT
  type = object({
    provider = optional(string, "object-storage")
    prefix   = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains(["object-storage", "google-secret-manager"], var.secrets.provider)
    error_message = "secrets.provider is \"object-storage\" or \"google-secret-manager\"."
  }

  validation {
    condition     = var.secrets.prefix == null ? true : can(regex("^[A-Za-z0-9-]+-$", var.secrets.prefix)) && var.secrets.provider != "object-storage"
    error_message = "secrets.prefix has letters, digits and dashes and ends with a dash, such as \"nstance-example-\". In the bucket, secrets have the bucket's prefix."
  }
}

variable "deletion_protection" {
  description = "Refuse every plan that destroys the cluster, until an apply has set this variable to `false`. This protects only clusters with secrets in the bucket, because other clusters have no resource `nstance_cluster`."
  type        = bool
  default     = false
  nullable    = false
}

variable "force_destroy" {
  description = "Let `tofu destroy` delete the bucket with all objects. If false, destroy fails while the bucket has objects or earlier versions."
  type        = bool
  default     = false
  nullable    = false
}

variable "labels" {
  description = "Labels of all resources of this module that can have labels."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for key, value in var.labels : can(regex("^[\\p{Ll}\\p{Lo}][\\p{Ll}\\p{Lo}\\p{N}_-]{0,62}$", key)) && can(regex("^[\\p{Ll}\\p{Lo}\\p{N}_-]{0,63}$", value))])
    error_message = "Keys and values of labels have at most 63 lower-case letters, digits, underscores and dashes, and keys begin with a letter."
  }
}
