# shard/tenant/name
terraform import nstance_group.batch us-west-2a/default/batch
