{{/* The labels of every object. */}}
{{- define "turnpike.labels" -}}
app.kubernetes.io/part-of: turnpike
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* What selects the pods of a component: (dict "component" "gateway"). */}}
{{- define "turnpike.selector" -}}
app.kubernetes.io/name: turnpike
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "turnpike.image" -}}
{{- with .Values.image.digest }}{{ printf "%s@%s" $.Values.image.repository . }}
{{- else }}{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "turnpike.gatewayImage" -}}
{{- if not .Values.gpu.enabled }}{{ include "turnpike.image" . }}
{{- else if .Values.gpu.imageDigest }}{{ printf "%s@%s" .Values.image.repository .Values.gpu.imageDigest }}
{{- else }}{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default (printf "%s-gpu" .Chart.AppVersion)) }}
{{- end }}
{{- end }}

{{/* What a pod must not be: root, or a writer of its root file system (Pod Security Standards, restricted). */}}
{{- define "turnpike.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "turnpike.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* A variable from the Secret that the values name: (list $ "TURNPIKE_KAFKA_URL"). Nothing where they name none. */}}
{{- define "turnpike.secret" -}}
{{- $name := index . 1 }}
{{- with index (index . 0).Values.secrets $name -}}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      {{- toYaml . | nindent 6 }}
{{- end }}
{{- end }}

{{/* The certificates between gateways and workers: the keys of a Secret of the type kubernetes.io/tls. */}}
{{- define "turnpike.workerTLS" -}}
{{- $folder := "/etc/turnpike/workers" -}}
{{- dict "certificate" (printf "%s/tls.crt" $folder) "key" (printf "%s/tls.key" $folder) "ca" (printf "%s/ca.crt" $folder) | toJson -}}
{{- end }}

{{/* The fleets of all models: the workers' Service. */}}
{{- define "turnpike.replicas" -}}
{{- $models := .Values.settings.TURNPIKE_MODELS | default dict -}}
{{- if not (and (kindIs "map" $models) $models) -}}
{{- fail "workers need settings.TURNPIKE_MODELS, a mapping: gateways and workers serve the same models" -}}
{{- end -}}
{{- $replicas := dict -}}
{{- range $name, $_ := $models -}}
{{- $_ := set $replicas $name (list "tcp+dns://workers:9010") -}}
{{- end -}}
{{- toJson $replicas -}}
{{- end }}

{{/* A pod's access to names. */}}
{{- define "turnpike.dnsEgress" -}}
{{- $policies := .Values.networkPolicies -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ $policies.dns.namespace }}
    {{- range $policies.dns.cidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53}
{{- end }}

{{/* A pod's access to names, stores and what the values add: (list $ ports). */}}
{{- define "turnpike.egress" -}}
{{- $policies := (index . 0).Values.networkPolicies -}}
{{ include "turnpike.dnsEgress" (index . 0) }}
- to:
    - namespaceSelector: {}
    {{- range $policies.stores.cidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    {{- range index . 1 }}
    - {port: {{ . | int }}}
    {{- end }}
{{- with $policies.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}
