{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* What all pods share. Call it with (dict "root" . "component" NAME "args" LIST "resources" MAP). */}}
{{- define "penstock.pod" -}}
metadata:
  labels:
    app.kubernetes.io/name: penstock
    app.kubernetes.io/instance: {{ .root.Release.Name }}
    app.kubernetes.io/component: {{ .component }}
  annotations:
    checksum/config: {{ .root.Values.config | toYaml | sha256sum }}
    {{- with .root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ .root.Release.Name }}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 15
  {{- if .once }}
  restartPolicy: Never
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: penstock
      image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: {{ .args | toJson }}
      envFrom:
        - secretRef: {name: {{ .root.Values.secretName }}}
      env:
        - {name: PENSTOCK_CONFIG, value: /etc/penstock/penstock.yaml}
        - {name: PENSTOCK_HOME, value: /data}
      {{- if eq .component "api" }}
      ports:
        - {name: http, containerPort: 8440}
      startupProbe:
        httpGet: {path: /healthz, port: http}
        failureThreshold: 30
        periodSeconds: 2
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
      {{- else if not .once }}
      ports:
        - {name: metrics, containerPort: 9100}
      livenessProbe:
        httpGet: {path: /metrics, port: metrics}
        initialDelaySeconds: 20
        periodSeconds: 30
        timeoutSeconds: 10
      {{- end }}
      resources: {{ .resources | toJson }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: config, mountPath: /etc/penstock, readOnly: true}
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: config
      configMap: {name: {{ .root.Release.Name }}}
    - name: data
      emptyDir: {sizeLimit: {{ .root.Values.cacheSize }}}
    - name: tmp
      emptyDir: {}
{{- end }}

{{/* A deployment. Call it with (dict "root" . "component" NAME "replicas" N "args" LIST "resources" MAP); 0 replicas: an autoscaler decides. */}}
{{- define "penstock.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  labels:
    {{- include "penstock.labels" .root | nindent 4 }}
spec:
  {{- if .replicas }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels:
      app.kubernetes.io/name: penstock
      app.kubernetes.io/instance: {{ .root.Release.Name }}
      app.kubernetes.io/component: {{ .component }}
  template:
    {{- include "penstock.pod" . | nindent 4 }}
{{- end }}
