{{- define "type_members" -}}
{{- if eq .Name "metadata" }}The object's metadata.{{ else }}{{ markdownRenderFieldDoc .Doc }}{{ end -}}
{{- end -}}
