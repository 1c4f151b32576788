output "operator_values" {
  description = "What nstance-operator needs of the cluster: `values` as an object, `helm_values` as a file of Helm values, and `config_map` as a manifest with these values in the key `values.yaml`."
  value       = local.operator_values
}
