# The permissions of the servers' roles, as data. tests/modules evaluates these locals and asserts what they allow and
# deny.
#
# The permissions depend on tags. `nstance:cluster` is on all resources of the cluster. `nstance:managed` and
# `nstance:shard` are on the VMs that a shard's servers start. `nstance:server` is on the servers' own VMs, and
# `nstance:leader` on the leader interfaces, each with the shard's name. No server can add any of these tags to an
# existing resource, and none can start a VM with the tag of a server or of a leader interface.

locals {
  ec2        = "arn:${local.partition}:ec2:${local.region}:${local.account_id}"
  key_prefix = var.cluster.prefix == "" ? "" : "${var.cluster.prefix}/"
  objects    = "${var.cluster.bucket_arn}/${local.key_prefix}"

  trust_policy = {
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = local.ec2_service }
      Action    = "sts:AssumeRole"
    }]
  }

  # The secrets that every leader needs. The first leader of the cluster creates them unless the modules have created
  # them.
  well_known_secrets = ["ca.key", "registration-nonce.key", "workload-ca.key"]
  secrets_in_bucket  = var.cluster.secrets.provider == "object-storage"

  # The bucket. The shards share the CA, the secrets, the records of operators, the keys of agents, and the files. Servers
  # never write below config/ or files/. They delete only records of terminated instances and their own probe objects.
  bucket_statements = { for shard, grant in var.shards : shard => [
    {
      Sid    = "ReadState"
      Effect = "Allow"
      Action = "s3:GetObject"
      Resource = [for name in concat(
        ["cluster/ca.crt", "cluster/key/*", "cluster/operator/*", "config/${shard}.jsonc", "files/*", "groups/${shard}.jsonc", "shard/${shard}/*"],
        [for secret in distinct(concat(local.well_known_secrets, grant.secrets)) : "cluster/secret/${secret}" if local.secrets_in_bucket],
      ) : "${local.objects}${name}"]
    },
    {
      Sid    = "WriteState"
      Effect = "Allow"
      Action = "s3:PutObject"
      Resource = [for name in concat(
        ["cluster/ca.crt", "cluster/key/*", "cluster/operator/*", "groups/${shard}.jsonc", "shard/${shard}/*"],
        [for secret in local.well_known_secrets : "cluster/secret/${secret}" if local.secrets_in_bucket],
      ) : "${local.objects}${name}"]
    },
    {
      Sid      = "DeleteOwn"
      Effect   = "Allow"
      Action   = "s3:DeleteObject"
      Resource = [for kind in ["instance", "journal", "probe", "rollout"] : "${local.objects}shard/${shard}/${kind}/*"]
    },
    {
      # For a missing object S3 answers 404 only to callers with ListBucket permission, and 403 to others. A request for
      # an object has no prefix, so the condition uses IfExists. A leader that finds no CA lists the operators and the
      # instances of all shards before it makes one.
      Sid      = "ListState"
      Effect   = "Allow"
      Action   = "s3:ListBucket"
      Resource = var.cluster.bucket_arn
      Condition = { StringLikeIfExists = { "s3:prefix" = [
        for name in ["cluster/operator/*", "config/${shard}.jsonc", "shard/", "shard/${shard}/*"] : "${local.key_prefix}${name}"
      ] } }
    },
  ] }

  # Secrets: the key that encrypts the secrets in the bucket, or the secrets in a secrets service. In a secrets service
  # the first leader creates the well-known secrets.
  secret_arns = {
    aws-secrets-manager = "arn:${local.partition}:secretsmanager:${local.region}:${local.account_id}:secret:${var.cluster.secrets.prefix}"
    aws-parameter-store = "arn:${local.partition}:ssm:${local.region}:${local.account_id}:parameter${var.cluster.secrets.prefix}"
  }
  read_secret = { aws-secrets-manager = "secretsmanager:GetSecretValue", aws-parameter-store = "ssm:GetParameter" }
  make_secret = { aws-secrets-manager = "secretsmanager:CreateSecret", aws-parameter-store = "ssm:PutParameter" }

  secret_statements = { for shard, grant in var.shards : shard => concat(
    [for key in [var.cluster.encryption_key] : {
      Sid      = "ReadEncryptionKey"
      Effect   = "Allow"
      Action   = local.read_secret[key.provider]
      Resource = key.arn
    } if key != null],
    # The names of secrets in Secrets Manager end with a dash and six characters of AWS.
    [for provider, arn in local.secret_arns : {
      Sid    = "ReadSecrets"
      Effect = "Allow"
      Action = local.read_secret[provider]
      Resource = flatten([for name in distinct(concat(local.well_known_secrets, grant.secrets)) :
        provider == "aws-secrets-manager" && !endswith(name, "*") ? ["${arn}${name}", "${arn}${name}-??????"] : ["${arn}${name}"]
      ])
    } if provider == var.cluster.secrets.provider],
    [for provider, arn in local.secret_arns : {
      Sid      = "MakeWellKnownSecrets"
      Effect   = "Allow"
      Action   = local.make_secret[provider]
      Resource = [for name in local.well_known_secrets : provider == "aws-secrets-manager" ? "${arn}${name}*" : "${arn}${name}"]
    } if provider == var.cluster.secrets.provider],
    [for arn in [var.cluster.kms_key_arn] : {
      Sid      = "UseKMSKey"
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource = arn
    } if arn != null],
  ) }

  # VMs. Servers can start instances only with the shard's tags and IMDSv2, and can terminate only such instances.
  instance_statements = { for shard, grant in var.shards : shard => [
    {
      Sid      = "StartTaggedInstances"
      Effect   = "Allow"
      Action   = "ec2:RunInstances"
      Resource = "${local.ec2}:instance/*"
      Condition = merge(
        {
          StringEquals = {
            "aws:RequestTag/nstance:cluster" = var.cluster.id
            "aws:RequestTag/nstance:shard"   = shard
            "aws:RequestTag/nstance:managed" = "true"
            "ec2:MetadataHttpTokens"         = "required"
          }
        },
        { for key in ["StringNotEquals"] : key => { "ec2:Tenancy" = "host" } if length(local.listed_hosts) == 0 },
      )
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
        [for kind in ["capacity-reservation", "placement-group", "spot-instances-request", "volume"] : "${local.ec2}:${kind}/*"],
        var.key_pairs == null ? ["${local.ec2}:key-pair/*"] : [for name in var.key_pairs : "${local.ec2}:key-pair/${name}"],
        var.security_group_ids == null ? ["${local.ec2}:security-group/*"] : [for id in var.security_group_ids : "${local.ec2}:security-group/${id}"],
        [for kind, owners in local.owners : "arn:${local.partition}:ec2:${local.region}::${kind}/*" if owners == null],
      )
    },
    {
      # For an existing interface, the request has no tags. So this statement does not permit a launch with a leader
      # interface.
      Sid      = "StartWithNewInterfaces"
      Effect   = "Allow"
      Action   = "ec2:RunInstances"
      Resource = "${local.ec2}:network-interface/*"
      Condition = {
        StringEquals = { "aws:RequestTag/nstance:cluster" = var.cluster.id, "aws:RequestTag/nstance:shard" = shard }
      }
    },
    {
      # The keys of tags are compared without regard to case, as IAM compares aws:ResourceTag. Servers may set all tags
      # nstance:… but these two, so that newer servers, which may set further tags, need no newer policy.
      Sid      = "TagWhatIsStarted"
      Effect   = "Allow"
      Action   = "ec2:CreateTags"
      Resource = [for kind in ["instance", "network-interface", "spot-instances-request", "volume"] : "${local.ec2}:${kind}/*"]
      Condition = merge(
        {
          StringEquals = {
            "ec2:CreateAction"               = "RunInstances"
            "aws:RequestTag/nstance:cluster" = var.cluster.id
            "aws:RequestTag/nstance:shard"   = shard
          }
          "ForAllValues:StringNotEqualsIgnoreCase" = { "aws:TagKeys" = ["nstance:server", "nstance:leader"] }
        },
        { for keys in [var.tag_keys] : "ForAllValues:StringLike" => { "aws:TagKeys" = concat(["Name", "nstance:*"], local.own_tag_keys, keys) } if keys != null },
      )
    },
    {
      Sid      = "PassAgentRole"
      Effect   = "Allow"
      Action   = "iam:PassRole"
      Resource = concat([local.agent_role_arn], grant.pass_role_arns)
      Condition = {
        StringEquals = { "iam:PassedToService" = distinct(["ec2.amazonaws.com", local.ec2_service]) }
      }
    },
    {
      # The first spot instance of an account makes this role.
      Sid       = "MakeRoleOfSpotInstances"
      Effect    = "Allow"
      Action    = "iam:CreateServiceLinkedRole"
      Resource  = "arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
      Condition = { StringEquals = { "iam:AWSServiceName" = "spot.amazonaws.com" } }
    },
    {
      Sid      = "UseOwnInstances"
      Effect   = "Allow"
      Action   = ["ec2:GetConsoleOutput", "ec2:StartInstances", "ec2:StopInstances", "ec2:TerminateInstances"]
      Resource = "${local.ec2}:instance/*"
      Condition = {
        StringEquals = {
          "aws:ResourceTag/nstance:cluster" = var.cluster.id
          "aws:ResourceTag/nstance:shard"   = shard
          "aws:ResourceTag/nstance:managed" = "true"
        }
      }
    },
    {
      # These actions do not support resource-level permissions.
      Sid    = "Describe"
      Effect = "Allow"
      Action = concat(
        ["ec2:DescribeImages", "ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"],
        [for arns in [var.target_group_arns] : "elasticloadbalancing:DescribeTargetGroupAttributes" if length(arns) > 0],
        [for on in [var.load_balancer_health] : "elasticloadbalancing:DescribeTargetHealth" if on],
      )
      Resource = "*"
    },
  ] }

  # The leader's address: servers may attach the shard's leader interface to the shard's servers.
  leader_statements = { for shard, grant in var.shards : shard => [
    for kind, tag in { network-interface = "leader", instance = "server" } : {
      Sid                                = kind == "instance" ? "MoveItBetweenServers" : "MoveLeaderInterface"
      Effect                             = "Allow"
      Action                             = ["ec2:AttachNetworkInterface", "ec2:DetachNetworkInterface"]
      Resource                           = "${local.ec2}:${kind}/*"
      Condition = {
        StringEquals = { "aws:ResourceTag/nstance:cluster" = var.cluster.id, "aws:ResourceTag/nstance:${tag}" = shard }
      }
    }
  ] }

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

  # Keys of disks. Without these permissions RunInstances succeeds, but EC2 terminates the instance before it runs.
  # https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
  via_ec2 = { "kms:ViaService" = ["ec2.${local.region}.amazonaws.com", "ec2.${local.region}.amazonaws.com.cn"] }
  disk_key_statements = flatten([for arns in [var.ebs_kms_key_arns] : [
    {
      Sid       = "UseDiskKeys"
      Effect    = "Allow"
      Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
      Resource  = arns
      Condition = { StringEquals = local.via_ec2 }
    },
    {
      # Grants only for AWS itself: EC2 decrypts the disk of a running instance.
      Sid       = "GrantDiskKeys"
      Effect    = "Allow"
      Action    = "kms:CreateGrant"
      Resource  = arns
      Condition = { StringEquals = local.via_ec2, Bool = { "kms:GrantIsForAWSResource" = "true" } }
    },
  ] if length(arns) > 0])

  # EC2 asks for no permission for a dedicated host, only for the tenancy.
  # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
  listed_hosts = [for arn in var.launch_resource_arns : arn if strcontains(arn, ":dedicated-host/") || strcontains(arn, ":resource-groups:")]

  launch_resource_statements = [for arns in [var.launch_resource_arns] : {
    Sid      = "StartWithListed"
    Effect   = "Allow"
    Action   = "ec2:RunInstances"
    Resource = arns
  } if length(arns) > 0]

  # A server reports to the Auto Scaling group of its machine, which the module shard names, that it is ready or
  # unhealthy.
  health_statements = { for shard, grant in var.shards : shard => [{
    Sid       = "ReportServerHealth"
    Effect    = "Allow"
    Action    = ["autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceHealth"]
    Resource  = "arn:${local.partition}:autoscaling:${local.region}:${local.account_id}:autoScalingGroup:*:autoScalingGroupName/${var.cluster.id}-${shard}-server"
    Condition = { StringEquals = { "aws:ResourceTag/nstance:cluster" = var.cluster.id } }
  }] }

  # What the SSM agent needs for sessions. AWS's own policy also reads all parameters of the account.
  # https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html
  ssm_statements = [for on in [var.server_ssm] : {
    Sid    = "OpenSessions"
    Effect = "Allow"
    Action = [
      "ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
      "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
    ]
    Resource = "*"
  } if on]

  # One statement for all target groups, or none.
  target_statements = [for arns in [values(var.target_group_arns)] : {
    Sid      = "RegisterTargets"
    Effect   = "Allow"
    Action   = ["elasticloadbalancing:RegisterTargets", "elasticloadbalancing:DeregisterTargets"]
    Resource = arns
  } if length(arns) > 0]

  server_policies = { for shard, grant in var.shards : shard => jsonencode({
    Version = "2012-10-17"
    Statement = flatten([
      local.bucket_statements[shard],
      local.secret_statements[shard],
      local.instance_statements[shard],
      local.source_statements,
      local.disk_key_statements,
      local.launch_resource_statements,
      local.leader_statements[shard],
      local.health_statements[shard],
      local.ssm_statements,
      local.target_statements,
    ])
  }) }
}
