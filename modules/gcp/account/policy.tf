# The permissions of the servers, as data. Conditions compare names, because those of Compute Engine cannot compare
# labels. A server therefore may change any VM in its zone except those of the servers of other shards.
# https://cloud.google.com/iam/docs/conditions-resource-attributes

locals {
  key_prefix = var.cluster.prefix == "" ? "" : "${var.cluster.prefix}/"
  bucket     = "projects/_/buckets/${var.cluster.bucket}"
  objects    = "${local.bucket}/objects/${local.key_prefix}"

  # The secrets that every leader needs. The first leader of the cluster creates them unless the modules have created
  # them.
  well_known_secrets = ["ca.key", "registration-nonce.key", "workload-ca.key"]
  in_bucket          = var.cluster.secrets.provider == "object-storage"

  roles = merge({
    reader = {
      title = "servers read Compute Engine"
      permissions = [
        "compute.images.list", "compute.images.useReadOnly",
        "compute.instanceGroups.list", "compute.instances.get", "compute.instances.list", "compute.machineTypes.get", "compute.resourcePolicies.use",
        "compute.snapshots.useReadOnly", "compute.storagePools.use", "compute.subnetworks.get", "compute.subnetworks.use", "compute.subnetworks.useExternalIp",
        "compute.zoneOperations.get", "compute.zoneOperations.list",
      ]
    }
    instances = {
      title = "servers start and end VMs, and let them sleep"
      permissions = [
        "compute.disks.addResourcePolicies", "compute.disks.create", "compute.disks.setLabels", "compute.disks.useReadOnly",
        "compute.instances.addResourcePolicies", "compute.instances.create", "compute.instances.delete", "compute.instances.getSerialPortOutput",
        "compute.instances.setLabels",
        "compute.instances.resume",
        "compute.instances.setMetadata", "compute.instances.setServiceAccount", "compute.instances.setTags",
        "compute.instances.start", "compute.instances.stop", "compute.instances.suspend",
        "compute.instances.use",
      ]
    }
    leader        = { title = "servers move the leader's address", permissions = ["compute.instances.updateNetworkInterface"] }
    balancer      = { title = "servers use load balancers", permissions = ["compute.instanceGroups.update", "compute.regionBackendServices.get"] }
    object_reader = { title = "servers read the state", permissions = ["storage.objects.get"] }
    object_lister = { title = "servers list the state", permissions = ["storage.objects.list"] }
    object_writer = { title = "servers write the state", permissions = ["storage.objects.create", "storage.objects.delete"] }
    }, local.in_bucket ? {} : {
    secret_reader = { title = "servers read secrets", permissions = ["secretmanager.secrets.get", "secretmanager.versions.access"] }
    # A creator that failed leaves a secret without a version, which the next one deletes.
    secret_writer = { title = "servers make secrets", permissions = ["secretmanager.secrets.create", "secretmanager.secrets.delete", "secretmanager.versions.add"] }
  })

  # A condition has at most 12 logical operators, so a longer list of names is spread over several bindings.
  # https://cloud.google.com/iam/quotas
  condition_terms = 12

  # Names of servers' VMs, which the module shard makes, begin with this prefix.
  server_prefix = { for shard, grant in var.shards : shard => "${var.cluster.id}-${shard}-server-" }
  zone_path     = { for shard, grant in var.shards : shard => "projects/${local.project}/zones/${coalesce(grant.zone, shard)}/" }

  project_bindings = merge(
    { for shard, grant in var.shards : "${shard}/reader" => { shard = shard, role = "reader", condition = null } },
    { for shard, grant in var.shards : "${shard}/instances" => { shard = shard, role = "instances",
      condition = "resource.name.startsWith(\"${local.zone_path[shard]}\") && !(${join(" || ", [
        for other, prefix in local.server_prefix : "resource.name.startsWith(\"${local.zone_path[shard]}instances/${prefix}\")" if local.zone_path[other] == local.zone_path[shard]
      ])})"
    } },
    { for shard, grant in var.shards : "${shard}/leader" => { shard = shard, role = "leader",
      condition                                                     = "resource.name.startsWith(\"${local.zone_path[shard]}instances/${local.server_prefix[shard]}\")"
    } },
    # Conditions cannot name instance groups or backend services, so the binding is for the project.
    { for shard, grant in var.shards : "${shard}/balancer" => { shard = shard, role = "balancer", condition = null } if var.load_balancers },
    merge([for shard, grant in var.shards : {
      for i, names in chunklist(distinct(concat(local.well_known_secrets, grant.secrets)), local.condition_terms) : "${shard}/secret_reader${i == 0 ? "" : "/${i + 1}"}" => {
        shard     = shard, role = "secret_reader"
        condition = join(" || ", [for name in names : "resource.name.startsWith(\"${local.secret_path}${replace(replace(trimsuffix(name, "*"), "_", "_5f"), ".", "_2e")}\")"])
      }
    } if !local.in_bucket]...),
    { for shard, grant in var.shards : "${shard}/secret_writer" => { shard = shard, role = "secret_writer",
      # Creating a secret is a call on the project, so the condition also permits the project.
      condition = join(" || ", concat(
        ["resource.type == \"cloudresourcemanager.googleapis.com/Project\""],
        [for name in local.well_known_secrets : "resource.name.startsWith(\"${local.secret_path}${replace(name, ".", "_2e")}\")"],
      ))
    } if !local.in_bucket },
  )
  secret_path = "projects/${local.in_bucket ? "" : data.google_project.this[0].number}/secrets/${var.cluster.secrets.prefix}"

  # The bucket. The shards share the CA, the secrets, the records of operators, the keys of agents, and the files. Servers
  # never write below config/ or files/.
  readable = { for shard, grant in var.shards : shard => concat(
    ["cluster/ca.crt", "cluster/key/", "cluster/operator/", "config/${shard}.jsonc", "files/", "groups/${shard}.jsonc", "shard/${shard}/"],
    [for secret in distinct(concat(local.well_known_secrets, grant.secrets)) : "cluster/secret/${trimsuffix(secret, "*")}" if local.in_bucket],
  ) }
  writable = { for shard, grant in var.shards : shard => concat(
    ["cluster/ca.crt", "cluster/key/", "cluster/operator/", "groups/${shard}.jsonc", "shard/${shard}/"],
    [for secret in local.well_known_secrets : "cluster/secret/${secret}" if local.in_bucket],
  ) }
  # A leader that finds no CA lists the operators and the instances of all shards before it makes one.
  listable = { for shard, grant in var.shards : shard => ["cluster/operator/", "config/${shard}.jsonc", "shard/"] }

  bucket_bindings = merge(flatten([for shard, grant in var.shards : [{
    for i, names in chunklist(local.readable[shard], local.condition_terms) : "${shard}/reader${i == 0 ? "" : "/${i + 1}"}" => {
      shard = shard, role = "object_reader", condition = join(" || ", [for name in names : "resource.name.startsWith(\"${local.objects}${name}\")"])
    }
    }, {
    # Replacing an object needs the permissions to create and to delete.
    "${shard}/writer" = { shard = shard, role = "object_writer", condition = join(" || ", [for name in local.writable[shard] : "resource.name.startsWith(\"${local.objects}${name}\")"]) }
    # Listing objects is a call on the bucket. The condition compares the prefix, which is an attribute of the call.
    "${shard}/lister" = { shard = shard, role = "object_lister", condition = join(" || ", [for name in local.listable[shard] :
      "api.getAttribute(\"storage.googleapis.com/objectListPrefix\", \"\").startsWith(\"${local.key_prefix}${name}\")"
    ]) }
  }]])...)

  account_uses = merge([for shard, grant in var.shards : merge(
    { for i, account in google_service_account.agent : "${shard}/agent" => { shard = shard, account = account.name } },
    { for email in grant.service_accounts : "${shard}/${email}" => { shard = shard, account = "projects/${local.project}/serviceAccounts/${email}" } },
  )]...)
}
