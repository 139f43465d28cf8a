{{/* The name that all objects have. */}}
{{- define "infercanary.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The labels that select the exporter's pods. */}}
{{- define "infercanary.selector" -}}
app.kubernetes.io/name: infercanary
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "infercanary.labels" -}}
{{ include "infercanary.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "infercanary.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "infercanary.name" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: name the account that is there, or set serviceAccount.create" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "infercanary.priorityClass" -}}
{{- if .Values.priorityClass.create }}
{{- default (include "infercanary.name" .) .Values.priorityClass.name }}
{{- else }}
{{- .Values.priorityClass.name }}
{{- end }}
{{- end }}

{{- define "infercanary.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{/* A change of these settings needs a restart of the exporter. Other changes of its file do not. */}}
{{- define "infercanary.podAnnotations" -}}
{{- if .Values.store.postgres.url }}
checksum/store: {{ toJson .Values.store.postgres | sha256sum }}
{{- end }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* "true" if the chart creates PodMonitor and PrometheusRule, else empty. */}}
{{- define "infercanary.monitoring" -}}
{{- $wanted := .Values.monitoring.enabled -}}
{{- if eq (toString $wanted) "auto" -}}
{{- $wanted = .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}
{{- end -}}
{{- if $wanted }}true{{ end -}}
{{- end }}
