output "identities" {
  description = "The identity of each shard's servers on AWS, by shard, as the value of the variable `identity` of the module `shard` of Google Cloud."
  # Servers need the permissions when they start.
  depends_on = [aws_iam_role_policy.server]
  value      = { for shard, role in aws_iam_role.server : shard => { role_arn = role.arn } }
}
