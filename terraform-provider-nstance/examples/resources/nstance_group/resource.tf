resource "nstance_group" "batch" {
  shard              = "us-west-2a"
  name               = "batch"
  wait_for_instances = true
  spec = {
    template       = "worker"
    size           = 3
    instance_type  = "c7g.large"
    instance_types = ["c7g.xlarge", "m7g.large"] # when there is no capacity of the first
    vars           = { queue = "nightly" }
    rollout        = { canary = 1, bake_time = "5m" }
  }
}
