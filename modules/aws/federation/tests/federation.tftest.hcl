# tests/modules tests what the policies allow, with a policy evaluator.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
  }
}

variables {
  cluster = {
    id             = "example"
    bucket_arn     = "arn:aws:s3:::example"
    encryption_key = { provider = "aws-secrets-manager", arn = "arn:aws:secretsmanager:us-west-2:123456789012:secret:nstance/example/encryption-key-AbCdEf" }
  }
  shards = { us-west1-a = { service_account_id = "112233445566778899000" } }
}

run "defaults" {
  assert {
    condition     = aws_iam_role.server["us-west1-a"].name == "example-nstance-google-us-west1-a" && output.identities == { us-west1-a = { role_arn = "arn:aws:iam::123456789012:role/mocked" } }
    error_message = "the identities are ${jsonencode(output.identities)}"
  }
  assert {
    condition     = jsondecode(aws_iam_role.server["us-west1-a"].assume_role_policy).Statement[0].Condition.StringEquals["accounts.google.com:oaud"] == "arn:aws:iam::123456789012:role/example-nstance-google-us-west1-a"
    error_message = "the audience is not the ARN of the role"
  }
}

run "choices" {
  variables {
    path = "/nstance/"
    name = "a-name-of-many-characters-that-is-too-long-for-roles"
  }
  assert {
    condition     = length(aws_iam_role.server["us-west1-a"].name) == 64 && startswith(jsondecode(aws_iam_role.server["us-west1-a"].assume_role_policy).Statement[0].Condition.StringEquals["accounts.google.com:oaud"], "arn:aws:iam::123456789012:role/nstance/a-name-")
    error_message = "the role has the name ${aws_iam_role.server["us-west1-a"].name}"
  }
}

run "email" {
  command = plan
  variables {
    shards = { us-west1-a = { service_account_id = "nstance@my-project.iam.gserviceaccount.com" } }
  }
  expect_failures = [var.shards]
}
