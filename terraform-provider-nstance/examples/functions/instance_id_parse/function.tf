output "created_at" {
  value = provider::nstance::instance_id_parse("acc06bgm7733st2576nx5jht4ecjw").created_at
}
