output "account" {
  description = "The IAM roles, as the value of the variable `account` of the module `shard`. Its field `servers` has the roles of the servers, by shard."
  # Running servers need their permissions. Users of this output are created after the policies and destroyed before
  # them.
  depends_on = [aws_iam_role_policy.server]
  value = {
    servers = { for shard, role in aws_iam_role.server : shard => {
      role_arn              = role.arn
      role_name             = role.name
      instance_profile_arn  = aws_iam_instance_profile.server[shard].arn
      instance_profile_name = aws_iam_instance_profile.server[shard].name
    } }
    agent_role_arn              = aws_iam_role.agent.arn
    agent_role_name             = aws_iam_role.agent.name
    agent_instance_profile_arn  = aws_iam_instance_profile.agent.arn
    agent_instance_profile_name = aws_iam_instance_profile.agent.name
  }
}

output "server_policies" {
  description = "The IAM policies of the servers' roles, in JSON, by shard."
  value       = local.server_policies
}
