# The permissions of the service accounts, as data. They reach the cluster's own objects and nothing else: no VM, no
# network, and no configuration, record or file of a shard.

locals {
  key_prefix = var.cluster.prefix == "" ? "" : "${var.cluster.prefix}/"
  objects    = "projects/_/buckets/${var.cluster.bucket}/objects/${local.key_prefix}"

  well_known_secrets = ["ca.key", "registration-nonce.key", "workload-ca.key"]

  custom_roles = {
    object_reader = { title = "servers on AWS read the cluster", permissions = ["storage.objects.get"] }
    object_lister = { title = "servers on AWS list the cluster", permissions = ["storage.objects.list"] }
    object_writer = { title = "servers on AWS write the cluster", permissions = ["storage.objects.create", "storage.objects.delete"] }
  }

  # A condition has at most 12 logical operators, so a longer list of names is spread over several bindings.
  # https://cloud.google.com/iam/quotas
  condition_terms = 12

  shared = { for shard, grant in var.shards : shard => ["cluster/ca.crt", "cluster/key/", "cluster/operator/", "shard/${shard}/probe/"] }
  readable = { for shard, grant in var.shards : shard => concat(local.shared[shard],
    [for secret in distinct(concat(local.well_known_secrets, grant.secrets)) : "cluster/secret/${trimsuffix(secret, "*")}"]
  ) }
  writable = { for shard, grant in var.shards : shard => concat(local.shared[shard],
    [for secret in local.well_known_secrets : "cluster/secret/${secret}"]
  ) }

  bucket_bindings = merge(flatten([for shard, grant in var.shards : [{
    for i, names in chunklist(local.readable[shard], local.condition_terms) : "${shard}/reader${i == 0 ? "" : "/${i + 1}"}" => {
      shard = shard, role = "object_reader", condition = join(" || ", [for name in names : "resource.name.startsWith(\"${local.objects}${name}\")"])
    }
    }, {
    # Replacing an object needs the permissions to create and to delete.
    "${shard}/writer" = { shard = shard, role = "object_writer", condition = join(" || ", [for name in local.writable[shard] : "resource.name.startsWith(\"${local.objects}${name}\")"]) }
    # Listing objects is a call on the bucket. The condition compares the prefix, which is an attribute of the call.
    "${shard}/lister" = { shard = shard, role = "object_lister",
      condition = "api.getAttribute(\"storage.googleapis.com/objectListPrefix\", \"\").startsWith(\"${local.key_prefix}cluster/operator/\")"
    }
  }]])...)
}
