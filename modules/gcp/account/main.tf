# Service accounts of the cluster's servers, one for each shard, with the permissions of that shard alone.

data "google_client_config" "this" {}

# Only Secret Manager names the project by its number.
data "google_project" "this" {
  count = local.in_bucket ? 0 : 1
}

locals {
  project = data.google_client_config.this.project
  name    = coalesce(var.name, var.cluster.id)

  # IDs of service accounts have at most 30 characters.
  long_names = merge(
    { for shard, grant in var.shards : shard => "${local.name}-${shard}" },
    { for key in ["agent"] : "/agent" => "${local.name}-agent" if var.agent_service_account },
  )
  names   = { for key, name in local.long_names : key => length(name) <= 30 && length(name) >= 6 ? name : "${trim(substr(name, 0, 21), "-")}-${substr(sha1(name), 0, 8)}" }
  members = { for shard, account in google_service_account.server : shard => "serviceAccount:${account.email}" }

  # IDs of roles have no dashes. A destroyed role keeps its ID for weeks, and the provider restores it.
  role_prefix = replace(local.name, "-", "_")
}

resource "google_service_account" "server" {
  for_each     = var.shards
  account_id   = local.names[each.key]
  display_name = "Servers of the Nstance shard ${var.cluster.id}/${each.key}"
}

# VMs have no service account unless the cluster asks for one. This module gives it no permissions.
resource "google_service_account" "agent" {
  count        = var.agent_service_account ? 1 : 0
  account_id   = local.names["/agent"]
  display_name = "VMs that the Nstance cluster ${var.cluster.id} starts"
}

resource "google_project_iam_custom_role" "this" {
  for_each    = local.roles
  role_id     = "${local.role_prefix}_nstance_${each.key}"
  title       = "Nstance ${var.cluster.id}: ${each.value.title}"
  permissions = each.value.permissions
}

resource "google_project_iam_member" "server" {
  for_each = local.project_bindings
  project  = local.project
  role     = google_project_iam_custom_role.this[each.value.role].id
  member   = local.members[each.value.shard]

  dynamic "condition" {
    for_each = each.value.condition == null ? [] : [each.value.condition]

    content {
      title      = "nstance-${each.value.role}"
      expression = condition.value
    }
  }
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
  for_each  = var.cluster.encryption_key == null ? {} : var.shards
  secret_id = regex("^projects/[^/]+/secrets/[^/]+", var.cluster.encryption_key.source)
  role      = "roles/secretmanager.secretAccessor"
  member    = local.members[each.key]
}

# A server may start VMs only with these service accounts.
resource "google_service_account_iam_member" "agent" {
  for_each           = local.account_uses
  service_account_id = each.value.account
  role               = "roles/iam.serviceAccountUser"
  member             = local.members[each.value.shard]
}
