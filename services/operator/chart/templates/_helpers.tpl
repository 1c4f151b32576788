{{- define "nstance-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "nstance-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The name of cluster-scoped objects. It differs for releases of the same name in two namespaces. */}}
{{- define "nstance-operator.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "nstance-operator.fullname" .) }}
{{- end }}

{{- define "nstance-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "nstance-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "nstance-operator.configMapName" -}}
{{- default (printf "%s-config" (include "nstance-operator.fullname" .)) .Values.existingConfigMap }}
{{- end }}

{{- define "nstance-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "nstance-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nstance-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "nstance-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: nstance
app.kubernetes.io/managed-by: {{ .Release.Service }}
cluster.x-k8s.io/provider: infrastructure-nstance
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "nstance-operator.image" -}}
{{- $repository := .Values.image.repository }}
{{- with .Values.image.registry }}{{ $repository = printf "%s/%s" . $repository }}{{ end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* The ports of the shards' addresses and the listed ports. The result is JSON, because a named template returns text. */}}
{{- define "nstance-operator.shardPorts" -}}
{{- $ports := list }}
{{- range .Values.config.shards }}
{{- $ports = append $ports (regexFind "[0-9]+$" .registration_addr | int) }}
{{- $ports = append $ports (regexFind "[0-9]+$" .operator_addr | int) }}
{{- end }}
{{- range .Values.networkPolicy.shardPorts }}{{ $ports = append $ports (int .) }}{{ end }}
{{- $ports | uniq | toJson }}
{{- end }}

{{- /* Checks that a JSON schema cannot express. */}}
{{- define "nstance-operator.validate" -}}
{{- if not .Values.existingConfigMap }}
{{- if not .Values.config.cluster_id }}{{ fail "config.cluster_id is needed (or existingConfigMap)" }}{{ end }}
{{- if not .Values.config.shards }}{{ fail "config.shards needs at least one shard (or existingConfigMap)" }}{{ end }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.metrics.enabled) }}{{ fail "serviceMonitor.enabled needs metrics.enabled" }}{{ end }}
{{- end }}
