output "account" {
  description = "The service accounts, as the value of the variable `account` of the module `shard`. Its field `servers` has the service accounts of the servers, by shard."
  # Running servers need their permissions. Users of this output are created after the bindings and destroyed before
  # them.
  depends_on = [
    google_project_iam_member.server,
    google_storage_bucket_iam_member.server,
    google_secret_manager_secret_iam_member.key,
    google_service_account_iam_member.agent,
  ]
  value = {
    servers               = { for shard, account in google_service_account.server : shard => { email = account.email, unique_id = account.unique_id } }
    agent_service_account = one(google_service_account.agent[*].email)
  }
}
