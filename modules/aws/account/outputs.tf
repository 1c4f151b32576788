output "account" {
  description = "The roles, for the variable `account` of the module `shard`."
  # Running servers need their permissions. Users of this output are created after the policy and destroyed before it.
  depends_on = [aws_iam_role_policy.server]
  value = {
    server_role_arn              = aws_iam_role.server.arn
    server_role_name             = aws_iam_role.server.name
    server_instance_profile_arn  = aws_iam_instance_profile.server.arn
    server_instance_profile_name = aws_iam_instance_profile.server.name
    agent_role_arn               = aws_iam_role.agent.arn
    agent_role_name              = aws_iam_role.agent.name
    agent_instance_profile_arn   = aws_iam_instance_profile.agent.arn
    agent_instance_profile_name  = aws_iam_instance_profile.agent.name
  }
}

output "server_policy" {
  description = "The policy of the servers' role, in JSON."
  value       = local.server_policy
}
