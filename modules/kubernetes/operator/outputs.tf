output "operator_values" {
  description = "Values for nstance-operator: `values` as an object, `helm_values` as a file of Helm values, and `config_map` as a manifest with these values in the key `values.yaml`."
  value       = local.operator_values
}
