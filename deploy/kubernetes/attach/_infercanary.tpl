{{/*
Named templates that put a probe into a pod of your chart without a new image (docs/other-ways.md). Copy this file into
the chart's folder `templates`, and set infercanary.image in values.yaml. Then in the pod's template:

  initContainers: {{- include "infercanary.initContainers" . | nindent 8 }}
  volumes: {{- include "infercanary.volumes" . | nindent 8 }}

and in the server's container, with command and args of `infercanary attach IMAGE`:

  ports: {{- include "infercanary.ports" . | nindent 12 }}
  volumeMounts: {{- include "infercanary.volumeMounts" . | nindent 12 }}
*/}}
{{- define "infercanary.initContainers" -}}
- name: infercanary
  image: {{ .Values.infercanary.image }}
  command: [cp, -R, /infercanary/., /volume]
  resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 128Mi}}
  securityContext: {runAsNonRoot: true, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false,
    capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
  volumeMounts: [{name: infercanary, mountPath: /volume}]
{{- end }}
{{- define "infercanary.ports" -}}
- {name: infercanary, containerPort: 9798}
{{- end }}
{{- define "infercanary.volumeMounts" -}}
- {name: infercanary, mountPath: /infercanary, readOnly: true}
- {name: infercanary-settings, mountPath: /etc/infercanary, readOnly: true}
{{- end }}
{{- define "infercanary.volumes" -}}
- {name: infercanary, emptyDir: {}}
- {name: infercanary-settings, configMap: {name: infercanary-probe}}
{{- end }}
