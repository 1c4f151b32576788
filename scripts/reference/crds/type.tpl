{{- define "type" -}}
{{- if markdownShouldRenderType . }}
## {{ .Name }}

{{ .Doc }}
{{ if .Members }}
| field | type | |
|---|---|---|
{{ range .Members -}}
| `{{ .Name }}` | {{ markdownRenderType .Type }} | {{ template "type_members" . }}{{ with .Default }} Default: {{ markdownRenderDefault . }}.{{ end }} |
{{ end }}{{ end }}{{ if .EnumValues }}
| value | |
|---|---|
{{ range .EnumValues -}}
| `{{ .Name }}` | {{ markdownRenderFieldDoc .Doc }} |
{{ end }}{{ end }}
{{- end -}}
{{- end -}}
