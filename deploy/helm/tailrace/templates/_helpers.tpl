{{- define "tailrace.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "tailrace.selector" -}}
app.kubernetes.io/name: tailrace
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tailrace.labels" -}}
{{ include "tailrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tailrace.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-slim" .Chart.AppVersion) }}
{{- end }}

{{- define "tailrace.sparkImage" -}}
{{ .Values.sparkImage.repository }}:{{ .Values.sparkImage.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tailrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tailrace.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "tailrace.environment" -}}
- name: TAILRACE_CONFIG
  value: /etc/tailrace/tailrace.yaml
{{- end }}

{{- define "tailrace.secrets" -}}
{{- with .Values.secret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "tailrace.onS3" -}}
{{- if hasPrefix "s3" (default "" .Values.settings.store) }}yes{{ end -}}
{{- end }}
