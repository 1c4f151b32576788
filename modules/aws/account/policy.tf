# The permissions of the servers' role, as data. tests/modules evaluates these locals and asserts what they allow and
# deny.
#
# The permissions depend on tags. `nstance:cluster` is on all resources of the cluster. `nstance:managed` is on the VMs
# that the servers start. `nstance:server` is on the servers' own VMs, and `nstance:leader` on the leader interfaces. No
# server can add any of these tags to an existing resource.

locals {
  ec2        = "arn:${local.partition}:ec2:${local.region}:${local.account_id}"
  key_prefix = var.cluster.prefix == "" ? "" : "${var.cluster.prefix}/"
  objects    = "${var.cluster.bucket_arn}/${local.key_prefix}"

  trust_policy = {
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  }

  # The bucket. Servers never write below config/ or files/. They delete only records of terminated instances and their
  # own probe objects.
  bucket_statements = [
    {
      Sid      = "ReadState"
      Effect   = "Allow"
      Action   = "s3:GetObject"
      Resource = [for under in ["cluster/*", "config/*", "files/*", "groups/*", "shard/*"] : "${local.objects}${under}"]
    },
    {
      Sid      = "WriteState"
      Effect   = "Allow"
      Action   = "s3:PutObject"
      Resource = [for under in ["cluster/ca.crt", "cluster/secret/*", "cluster/operator/*", "groups/*", "shard/*"] : "${local.objects}${under}"]
    },
    {
      Sid      = "DeleteOwn"
      Effect   = "Allow"
      Action   = "s3:DeleteObject"
      Resource = [for under in ["shard/*/instance/*", "shard/*/probe/*"] : "${local.objects}${under}"]
    },
    {
      # For a missing object S3 answers 404 only to callers with ListBucket permission, and 403 to others. Such a
      # request has no prefix, hence IfExists.
      Sid       = "ListState"
      Effect    = "Allow"
      Action    = "s3:ListBucket"
      Resource  = var.cluster.bucket_arn
      Condition = { StringLikeIfExists = { "s3:prefix" = [for under in ["cluster/*", "config/*", "files/*", "groups/*", "shard/*"] : "${local.key_prefix}${under}"] } }
    },
  ]

  # Secrets: the key that encrypts the secrets in the bucket, or the secrets in a secrets service. In a secrets service
  # the first leader creates the well-known secrets.
  secret_arns = {
    aws-secrets-manager = "arn:${local.partition}:secretsmanager:${local.region}:${local.account_id}:secret:${var.cluster.secrets.prefix}"
    aws-parameter-store = "arn:${local.partition}:ssm:${local.region}:${local.account_id}:parameter${var.cluster.secrets.prefix}"
  }
  read_secret = { aws-secrets-manager = "secretsmanager:GetSecretValue", aws-parameter-store = "ssm:GetParameter" }
  make_secret = { aws-secrets-manager = "secretsmanager:CreateSecret", aws-parameter-store = "ssm:PutParameter" }

  secret_statements = concat(
    [for key in [var.cluster.encryption_key] : {
      Sid      = "ReadEncryptionKey"
      Effect   = "Allow"
      Action   = local.read_secret[key.provider]
      Resource = key.arn
    } if key != null],
    [for provider, arn in local.secret_arns : {
      Sid      = "ReadSecrets"
      Effect   = "Allow"
      Action   = local.read_secret[provider]
      Resource = "${arn}*"
    } if provider == var.cluster.secrets.provider],
    [for provider, arn in local.secret_arns : {
      Sid      = "MakeWellKnownSecrets"
      Effect   = "Allow"
      Action   = local.make_secret[provider]
      Resource = [for name in ["ca.key", "registration-nonce.key"] : provider == "aws-secrets-manager" ? "${arn}${name}*" : "${arn}${name}"]
    } if provider == var.cluster.secrets.provider],
    [for arn in [var.cluster.kms_key_arn] : {
      Sid      = "UseKMSKey"
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource = arn
    } if arn != null],
  )

  # VMs. Servers can start instances only with the cluster's tags and IMDSv2, and can terminate only such instances.
  instance_statements = [
    {
      Sid      = "StartTaggedInstances"
      Effect   = "Allow"
      Action   = "ec2:RunInstances"
      Resource = "${local.ec2}:instance/*"
      Condition = {
        StringEquals = {
          "aws:RequestTag/nstance:cluster" = var.cluster.id
          "aws:RequestTag/nstance:managed" = "true"
          "ec2:MetadataHttpTokens"         = "required"
        }
      }
    },
    merge(
      {
        Sid      = "StartInSubnets"
        Effect   = "Allow"
        Action   = "ec2:RunInstances"
        Resource = "${local.ec2}:subnet/*"
      },
      { for key in ["Condition"] : key => { ArnEquals = { "ec2:Vpc" = "${local.ec2}:vpc/${var.vpc_id}" } } if var.vpc_id != null },
    ),
    {
      Sid    = "StartWith"
      Effect = "Allow"
      Action = "ec2:RunInstances"
      Resource = concat(
        [for kind in ["capacity-reservation", "network-interface", "placement-group", "spot-instances-request", "volume"] : "${local.ec2}:${kind}/*"],
        var.key_pairs == null ? ["${local.ec2}:key-pair/*"] : [for name in var.key_pairs : "${local.ec2}:key-pair/${name}"],
        var.security_group_ids == null ? ["${local.ec2}:security-group/*"] : [for id in var.security_group_ids : "${local.ec2}:security-group/${id}"],
        [for kind, owners in local.owners : "arn:${local.partition}:ec2:${local.region}::${kind}/*" if owners == null],
      )
    },
    {
      Sid       = "TagWhatIsStarted"
      Effect    = "Allow"
      Action    = "ec2:CreateTags"
      Resource  = [for kind in ["instance", "network-interface", "spot-instances-request", "volume"] : "${local.ec2}:${kind}/*"]
      Condition = { StringEquals = { "ec2:CreateAction" = "RunInstances" } }
    },
    {
      Sid      = "PassAgentRole"
      Effect   = "Allow"
      Action   = "iam:PassRole"
      Resource = local.agent_role_arn
      Condition = {
        StringEquals = { "iam:PassedToService" = "ec2.amazonaws.com" }
      }
    },
    {
      Sid      = "TerminateOwnInstances"
      Effect   = "Allow"
      Action   = "ec2:TerminateInstances"
      Resource = "${local.ec2}:instance/*"
      Condition = {
        StringEquals = {
          "aws:ResourceTag/nstance:cluster" = var.cluster.id
          "aws:ResourceTag/nstance:managed" = "true"
        }
      }
    },
    {
      # These actions do not support resource-level permissions.
      Sid      = "Describe"
      Effect   = "Allow"
      Action   = ["ec2:DescribeImages", "ec2:DescribeInstances", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"]
      Resource = "*"
    },
  ]

  # The leader's address: servers may attach the cluster's leader interfaces to the cluster's servers.
  leader_statements = [
    {
      Sid      = "MoveLeaderInterface"
      Effect   = "Allow"
      Action   = ["ec2:AttachNetworkInterface", "ec2:DetachNetworkInterface"]
      Resource = "${local.ec2}:network-interface/*"
      Condition = {
        StringEquals = { "aws:ResourceTag/nstance:cluster" = var.cluster.id }
        StringLike   = { "aws:ResourceTag/nstance:leader" = "*" }
      }
    },
    {
      Sid      = "MoveItBetweenServers"
      Effect   = "Allow"
      Action   = ["ec2:AttachNetworkInterface", "ec2:DetachNetworkInterface"]
      Resource = "${local.ec2}:instance/*"
      Condition = {
        StringEquals = { "aws:ResourceTag/nstance:cluster" = var.cluster.id }
        StringLike   = { "aws:ResourceTag/nstance:server" = "*" }
      }
    },
  ]

  # Where owners or security groups are listed, RunInstances needs these statements.
  owners = { image = var.image_owners, snapshot = var.snapshot_owners }
  source_statements = concat(
    [for kind, owners in local.owners : {
      Sid       = kind == "image" ? "StartFromImages" : "StartFromSnapshots"
      Effect    = "Allow"
      Action    = "ec2:RunInstances"
      Resource  = "arn:${local.partition}:ec2:${local.region}::${kind}/*"
      Condition = { StringEquals = { "ec2:Owner" = owners } }
    } if owners == null ? false : length(owners) > 0],
    [for ids in [var.security_group_ids] : {
      Sid       = "StartInOwnSecurityGroups"
      Effect    = "Allow"
      Action    = "ec2:RunInstances"
      Resource  = "${local.ec2}:security-group/*"
      Condition = { StringEquals = { "aws:ResourceTag/nstance:cluster" = var.cluster.id } }
    } if ids != null],
  )

  # One statement for all target groups, or none.
  target_statements = [for arns in [values(var.target_group_arns)] : {
    Sid      = "RegisterTargets"
    Effect   = "Allow"
    Action   = ["elasticloadbalancing:RegisterTargets", "elasticloadbalancing:DeregisterTargets"]
    Resource = arns
  } if length(arns) > 0]

  server_policy = jsonencode({
    Version = "2012-10-17"
    Statement = flatten([
      local.bucket_statements,
      local.secret_statements,
      local.instance_statements,
      local.source_statements,
      local.leader_statements,
      local.target_statements,
    ])
  })
}
