# cluster/tenant/operator-id
terraform import nstance_operator.kubernetes example/default/opr06bgm7733st2576nx5jht4ecjw
