# Service accounts for the servers of shards on AWS. The bucket of their cluster is on Google Cloud. No key is stored: a
# workload identity pool trusts the AWS account, and each service account trusts one AWS role.

locals {
  name    = coalesce(var.name, var.cluster.id)
  pool_id = coalesce(var.pool_id, "nstance-${substr(local.name, 0, 24)}")

  # IDs of service accounts have at most 30 characters.
  long_names = { for shard, grant in var.shards : shard => "${local.name}-aws-${shard}" }
  names      = { for shard, name in local.long_names : shard => length(name) <= 30 ? name : "${trim(substr(name, 0, 21), "-")}-${substr(sha1(name), 0, 8)}" }
  members    = { for shard, account in google_service_account.server : shard => "serviceAccount:${account.email}" }

  # arn:aws:iam::123456789012:role/path/name of a role is arn:aws:sts::123456789012:assumed-role/name of its sessions.
  roles = { for shard, grant in var.shards : shard => replace(grant.role_arn, "/^arn:([^:]+):iam::([0-9]+):role/(?:.*/)?([^/]+)$/", "arn:$1:sts::$2:assumed-role/$3") }

  role_prefix = replace(local.name, "-", "_")
}

resource "google_iam_workload_identity_pool" "this" {
  workload_identity_pool_id = local.pool_id
  display_name              = substr("Nstance ${local.name}", 0, 32)
  description               = "Servers of the Nstance cluster ${var.cluster.id} on AWS"
}

resource "google_iam_workload_identity_pool_provider" "aws" {
  workload_identity_pool_id          = google_iam_workload_identity_pool.this.workload_identity_pool_id
  workload_identity_pool_provider_id = "aws-account"

  aws {
    account_id = split(":", values(var.shards)[0].role_arn)[4]
  }
}

resource "google_service_account" "server" {
  for_each     = var.shards
  account_id   = local.names[each.key]
  display_name = "Servers of the Nstance shard ${var.cluster.id}/${each.key} on AWS"
}

resource "google_service_account_iam_member" "server" {
  for_each           = var.shards
  service_account_id = google_service_account.server[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "principalSet://iam.googleapis.com/${google_iam_workload_identity_pool.this.name}/attribute.aws_role/${local.roles[each.key]}"
}

resource "google_project_iam_custom_role" "this" {
  for_each    = local.custom_roles
  role_id     = "${local.role_prefix}_nstance_aws_${each.key}"
  title       = "Nstance ${var.cluster.id}: ${each.value.title}"
  permissions = each.value.permissions
}

resource "google_storage_bucket_iam_member" "server" {
  for_each = local.bucket_bindings
  bucket   = var.cluster.bucket
  role     = google_project_iam_custom_role.this[each.value.role].id
  member   = local.members[each.value.shard]

  condition {
    title      = "nstance-${each.value.role}"
    expression = each.value.condition
  }
}

resource "google_secret_manager_secret_iam_member" "key" {
  for_each  = var.shards
  secret_id = regex("^projects/[^/]+/secrets/[^/]+", var.cluster.encryption_key.source)
  role      = "roles/secretmanager.secretAccessor"
  member    = local.members[each.key]
}
