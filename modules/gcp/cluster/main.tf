# Resources that all shards of a cluster share: the bucket, and the CA in it.

data "google_client_config" "this" {}

locals {
  project     = data.google_client_config.this.project
  region      = data.google_client_config.this.region
  location    = coalesce(var.location, local.region)
  bucket_name = coalesce(var.bucket_name, replace(lower("${var.cluster_id}-${local.project}-${local.location}"), "/[.:]/", "-"))
  key_prefix  = var.prefix == "" ? "" : "${var.prefix}/"
  labels      = merge({ nstance-cluster = var.cluster_id }, var.labels)
}

# The bucket holds the only durable state of the cluster.
resource "google_storage_bucket" "this" {
  # Google encrypts with the key on behalf of its storage service.
  depends_on = [google_kms_crypto_key_iam_member.storage]

  name                        = local.bucket_name
  location                    = local.location
  force_destroy               = var.force_destroy
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  labels                      = local.labels

  versioning {
    enabled = var.versioning
  }

  # Versions already keep what was deleted. A soft-deleted copy of each renewal of the lock would only cost money.
  soft_delete_policy {
    retention_duration_seconds = 0
  }

  # If two rules match an object, the shorter time applies.
  dynamic "lifecycle_rule" {
    for_each = !var.versioning ? [] : [
      { days = var.noncurrent_version_days, prefixes = var.prefix == "" ? [] : [local.key_prefix] },
      # Servers rewrite the lock every few seconds.
      { days = 1, prefixes = ["${local.key_prefix}shard/"] },
    ]

    content {
      action {
        type = "Delete"
      }

      condition {
        days_since_noncurrent_time = lifecycle_rule.value.days
        matches_prefix             = lifecycle_rule.value.prefixes
        with_state                 = "ARCHIVED"
      }
    }
  }

  dynamic "encryption" {
    for_each = var.kms_key_name == null ? [] : [var.kms_key_name]

    content {
      default_kms_key_name = encryption.value
    }
  }

  lifecycle {
    precondition {
      condition     = var.primary == null ? true : var.primary.id == var.cluster_id
      error_message = "primary is of another cluster than cluster_id."
    }
    precondition {
      condition     = length(local.bucket_name) <= 63
      error_message = "The bucket's name of cluster, project and location, \"${local.bucket_name}\", has ${length(local.bucket_name)} characters, and a bucket's name has at most 63: set bucket_name."
    }
  }
}

data "google_storage_project_service_account" "this" {
  count = var.kms_key_name == null ? 0 : 1
}

resource "google_kms_crypto_key_iam_member" "storage" {
  count         = var.kms_key_name == null ? 0 : 1
  crypto_key_id = var.kms_key_name
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = "serviceAccount:${data.google_storage_project_service_account.this[0].email_address}"
}

locals {
  # Only secrets in the bucket are encrypted with the key.
  sealed         = var.secrets.provider == "object-storage" && var.primary == null
  in_bucket      = var.secrets.provider == "object-storage"
  encryption_key = local.sealed && var.encryption_key != null ? { provider = "google-secret-manager", source = var.encryption_key.source } : null
  secrets = {
    provider   = var.secrets.provider
    prefix     = local.in_bucket ? "" : coalesce(var.secrets.prefix, "nstance-${var.cluster_id}-")
    project_id = local.in_bucket ? null : local.project
  }
}

resource "nstance_cluster" "this" {
  count = local.sealed ? 1 : 0

  id                  = var.cluster_id
  encryption_key      = local.encryption_key
  ca_early_renewal    = var.ca_early_renewal
  deletion_protection = var.deletion_protection
  force_destroy       = var.force_destroy

  # The cluster is created after the bucket and destroyed before it.
  depends_on = [google_storage_bucket.this]
}
