{{- define "gvDetails" }}
This page lists the custom resources of the API group `{{ .GroupVersionString }}`, and the types of their fields. The definitions in
[config/crd](../../config/crd) also have limits, patterns and defaults: `kubectl explain nstancemachinepool.spec` shows them.
[nstance-operator](operator.md#objects) says who makes which object.
{{ range .SortedTypes }}{{ template "type" . }}{{ end -}}
{{- end -}}
