mock_provider "google" {
  mock_data "google_client_config" {
    defaults = { project = "my-project", region = "us-central1" }
  }
  mock_data "google_storage_project_service_account" {
    defaults = { email_address = "service-1@gs-project-accounts.iam.gserviceaccount.com" }
  }
}

mock_provider "nstance" {}

variables {
  cluster_id     = "example"
  encryption_key = { source = "projects/my-project/secrets/example-encryption-key" }
}

run "defaults" {
  command = plan

  assert {
    condition     = output.storage == { provider = "gcs", bucket = "example-my-project-us-central1", prefix = "" }
    error_message = "storage has to be known when planning: ${jsonencode(output.storage)}"
  }
  assert {
    condition     = google_storage_bucket.this.uniform_bucket_level_access && google_storage_bucket.this.public_access_prevention == "enforced" && !google_storage_bucket.this.force_destroy
    error_message = "the bucket is not private and protected"
  }
  assert {
    condition     = google_storage_bucket.this.versioning[0].enabled && google_storage_bucket.this.soft_delete_policy[0].retention_duration_seconds == 0
    error_message = "the bucket does not keep versions, or keeps soft-deleted objects"
  }
  assert {
    condition     = sort([for rule in google_storage_bucket.this.lifecycle_rule : "${one(rule.condition).days_since_noncurrent_time} ${join(",", coalesce(one(rule.condition).matches_prefix, []))}"]) == tolist(["1 shard/", "90 "])
    error_message = "earlier versions are not kept for the given days"
  }
  assert {
    condition     = nstance_cluster.this[0].encryption_key.provider == "google-secret-manager" && output.encryption_key.source == var.encryption_key.source && length(google_kms_crypto_key_iam_member.storage) == 0
    error_message = "the key is ${jsonencode(output.encryption_key)}"
  }
}

run "choices" {
  command = plan

  variables {
    bucket_name             = "my-bucket"
    location                = "EU"
    prefix                  = "clusters/example"
    noncurrent_version_days = 7
    kms_key_name            = "projects/my-project/locations/eu/keyRings/nstance/cryptoKeys/state"
    ca_early_renewal        = "90d"
    force_destroy           = true
    deletion_protection     = true
    labels                  = { team = "a" }
  }

  assert {
    condition     = output.storage == { provider = "gcs", bucket = "my-bucket", prefix = "clusters/example" } && google_storage_bucket.this.location == "EU"
    error_message = "storage is ${jsonencode(output.storage)}"
  }
  assert {
    condition     = sort([for rule in google_storage_bucket.this.lifecycle_rule : "${one(rule.condition).days_since_noncurrent_time} ${join(",", one(rule.condition).matches_prefix)}"]) == tolist(["1 clusters/example/shard/", "7 clusters/example/"])
    error_message = "earlier versions are not kept for the given days"
  }
  assert {
    condition     = google_storage_bucket.this.encryption[0].default_kms_key_name == var.kms_key_name && google_kms_crypto_key_iam_member.storage[0].member == "serviceAccount:service-1@gs-project-accounts.iam.gserviceaccount.com"
    error_message = "the bucket is not encrypted with the key"
  }
  assert {
    condition     = nstance_cluster.this[0].force_destroy && nstance_cluster.this[0].deletion_protection && nstance_cluster.this[0].ca_early_renewal == "90d"
    error_message = "the cluster is ${jsonencode(nstance_cluster.this[0])}"
  }
  assert {
    condition     = google_storage_bucket.this.labels == tomap({ nstance-cluster = "example", team = "a" })
    error_message = "the labels are ${jsonencode(google_storage_bucket.this.labels)}"
  }
}

run "secrets_service" {
  command = plan

  variables {
    encryption_key = null
    secrets        = { provider = "google-secret-manager" }
    versioning     = false
  }

  assert {
    condition     = length(nstance_cluster.this) == 0 && output.encryption_key == null && output.secrets == { provider = "google-secret-manager", prefix = "nstance-example-", project_id = "my-project" }
    error_message = "secrets are ${jsonencode(output.secrets)}"
  }
  assert {
    condition     = length(google_storage_bucket.this.lifecycle_rule) == 0
    error_message = "a bucket without versions has rules for them"
  }
}

run "no_key" {
  command = plan

  variables {
    encryption_key = null
  }

  expect_failures = [var.encryption_key]
}

run "wrong_names" {
  command = plan

  variables {
    cluster_id     = "Example"
    kms_key_name   = "my-key"
    encryption_key = { source = "my-key" }
    labels         = { team = "Payments" }
  }

  expect_failures = [var.cluster_id, var.kms_key_name, var.encryption_key, var.labels]
}

# Names that begin with a digit are refused here, because no VM, service account or firewall rule can have one.
run "digit_first" {
  command = plan

  variables {
    cluster_id = "2nd"
    labels     = { (join("", [for n in range(64) : "x"])) = "" }
  }

  expect_failures = [var.cluster_id, var.labels]
}

run "other_location" {
  command = plan

  variables {
    location = "EU"
  }

  assert {
    condition     = google_storage_bucket.this.name == "example-my-project-eu"
    error_message = "the bucket is ${google_storage_bucket.this.name}"
  }
}

run "name_too_long_for_a_bucket" {
  command = plan

  variables {
    cluster_id = "a-cluster-with-a-rather-long-n"
    location   = "northamerica-northeast1"
  }

  expect_failures = [google_storage_bucket.this]
}

run "primary" {
  command = plan
  variables {
    primary = {
      id             = "example"
      storage        = { provider = "s3", bucket = "example-primary" }
      secrets        = { provider = "object-storage" }
      encryption_key = { provider = "env", source = "KEY" }
    }
    encryption_key = null
  }
  assert {
    condition     = length(nstance_cluster.this) == 0 && output.encryption_key == null && output.cluster.primary.storage.bucket == "example-primary" && output.primary.storage.bucket == "example-primary"
    error_message = "a shard's bucket has a CA or a key of its own"
  }
}
