terraform import nstance_cluster.this example
