output "operator_values" {
  description = "Values that nstance-operator needs of the cluster: `values` as an object, `helm_values` as a file of Helm values, and `config_map` as a manifest of a ConfigMap with these values in the key `values.yaml`."
  value       = local.operator_values
}
