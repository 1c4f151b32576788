terraform import nstance_shard.us_west_2a us-west-2a
