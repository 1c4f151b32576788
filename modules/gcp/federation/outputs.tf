output "identities" {
  description = "The identity of each shard's servers on Google Cloud, by shard, as the value of the variable `identity` of the module `shard` of AWS."
  # Servers need the permissions when they start.
  depends_on = [
    google_service_account_iam_member.server,
    google_storage_bucket_iam_member.server,
    google_secret_manager_secret_iam_member.key,
  ]
  value = { for shard, account in google_service_account.server : shard => {
    pool_provider   = google_iam_workload_identity_pool_provider.aws.name
    service_account = account.email
  } }
}
