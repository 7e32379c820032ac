{{- define "millrace.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "millrace.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "millrace.name" .) }}
{{- end -}}

{{- define "millrace.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "millrace.selector" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millrace.cleanupSelector" -}}
app.kubernetes.io/name: millrace-cleanup
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millrace.controllerSelector" -}}
app.kubernetes.io/name: millrace-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millrace.image" -}}
{{- with .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "millrace.healthzPort" -}}
{{ .Values.healthz.port | default (ternary 10256 10266 .Values.kubeProxyReplacement) }}
{{- end -}}

{{- define "millrace.metricsPort" -}}
{{ .Values.metrics.port | default (ternary 10249 10269 .Values.kubeProxyReplacement) }}
{{- end -}}

{{- define "millrace.bracketed" -}}
{{- if and (contains ":" .) (not (hasPrefix "[" .)) }}[{{ . }}]{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- /* Each fault is one line: what is wrong, and what to set. */ -}}
{{- define "millrace.check" -}}
{{- $v := .Values -}}
{{- if and $v.kubeProxyReplacement (not $v.k8sServiceHost) (not $v.kubeProxyConfigMap) (not $v.kubeconfig) -}}
{{- fail "k8sServiceHost is missing: without kube-proxy nothing serves the API server's Service before Millrace does; set an address of the API server itself, such as --set k8sServiceHost=192.0.2.10, or kubeProxyReplacement=false" -}}
{{- end -}}
{{- if and $v.kubeProxyReplacement (not $v.healthz.port) -}}
{{- $nodes := lookup "apps/v1" "DaemonSet" "kube-system" "kube-proxy" | dig "status" "desiredNumberScheduled" 0 | int -}}
{{- if $nodes -}}
{{- fail (printf "kube-proxy runs on %d nodes, and two proxies would serve the same Services; to replace it, set healthz.port=10266 and metrics.port=10269 and follow `Take over from kube-proxy` in docs/install.md; to run beside it, set kubeProxyReplacement=false" $nodes) -}}
{{- end -}}
{{- end -}}
{{- if not $v.kubeProxyReplacement -}}
{{- if not $v.serviceProxyName -}}
{{- fail "serviceProxyName is missing: with kubeProxyReplacement=false two proxies would serve the same Services; set the value of the label service.kubernetes.io/service-proxy-name of those that Millrace is to serve" -}}
{{- end -}}
{{- if eq (include "millrace.healthzPort" .) "10256" -}}
{{- fail "healthz.port: 10256 is kube-proxy's, which runs on the same nodes with kubeProxyReplacement=false; set another one, or 0 for 10266" -}}
{{- end -}}
{{- if and $v.metrics.enabled (eq (include "millrace.metricsPort" .) "10249") -}}
{{- fail "metrics.port: 10249 is kube-proxy's, which runs on the same nodes with kubeProxyReplacement=false; set another one, or 0 for 10269" -}}
{{- end -}}
{{- end -}}
{{- if and $v.metrics.podMonitor.enabled (or (not $v.metrics.enabled) (has $v.metrics.bindAddress (list "127.0.0.1" "localhost" "::1"))) -}}
{{- fail "metrics.podMonitor.enabled: Prometheus can't reach metrics that are off or on a loopback address; set metrics.enabled=true and metrics.bindAddress=0.0.0.0" -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled (eq $v.forwarding.dsrDispatch "pod") -}}
{{- fail "networkPolicy.enabled is not accepted with forwarding.dsrDispatch=pod: pods then answer from addresses of Services, which count as forged; set forwarding.dsrDispatch=node" -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled (has $v.mode (list "ipvs" "none")) -}}
{{- fail (printf "networkPolicy.enabled is not accepted with mode=%s: Services are translated behind the firewall there; set mode=auto or mode=ebpf" $v.mode) -}}
{{- end -}}
{{- if and $v.config $v.kubeProxyConfigMap -}}
{{- fail "config and kubeProxyConfigMap are both set: the agent reads one KubeProxyConfiguration; set one of the two" -}}
{{- end -}}
{{- end -}}

{{- /* The flags of the agent, and of its set-up. */ -}}
{{- define "millrace.args" -}}
{{- $v := .Values -}}
- --source=kubernetes
{{- if $v.config }}
- --config=/etc/millrace/config.conf
{{- else if $v.kubeProxyConfigMap }}
- --config=/var/lib/kube-proxy/config.conf
{{- end }}
{{- with $v.kubeconfig }}
- --kubeconfig={{ . }}
{{- end }}
{{- if ne $v.mode "auto" }}
- --proxy-mode={{ $v.mode }}
{{- end }}
{{- with $v.serviceProxyName }}
- --service-proxy-name={{ . }}
{{- end }}
{{- with $v.clusterCIDR }}
- --cluster-cidr={{ join "," . }}
{{- end }}
{{- with $v.uplinks }}
- --uplinks={{ join "," . }}
{{- end }}
{{- with $v.podInterfaces }}
- --pod-interfaces={{ join "," . }}
{{- end }}
{{- with $v.nodePortAddresses }}
- --nodeport-addresses={{ join "," . }}
{{- end }}
{{- with $v.externalIPRanges }}
- --service-external-ip-range={{ join "," . }}
{{- end }}
{{- with $v.l2.ranges }}
- --l2-announce={{ join "," . }}
{{- end }}
{{- with $v.l2.devices }}
- --l2-devices={{ join "," . }}
{{- end }}
{{- with $v.routes.announce }}
- --route-announce={{ join "," . }}
{{- end }}
{{- if $v.routes.announcePods }}
- --route-announce-pods=on
{{- end }}
{{- with $v.routes.toPods }}
- --pod-routes={{ . }}
{{- end }}
{{- if $v.networkPolicy.enabled }}
- --network-policy=on
{{- end }}
{{- with $v.snatPorts }}
- --snat-ports={{ . }}
{{- end }}
{{- with $v.flowTableSize }}
- --flow-table-size={{ . | int }}
{{- end }}
{{- with $v.forwarding.mode }}
- --forwarding={{ . }}
{{- end }}
{{- with $v.forwarding.dsrEncap }}
- --dsr-encap={{ join "," . }}
{{- end }}
{{- with $v.forwarding.dsrDispatch }}
- --dsr-dispatch={{ . }}
{{- end }}
{{- with $v.forwarding.dsrOuterSource }}
- --dsr-outer-source={{ join "," . }}
{{- end }}
{{- with $v.loadBalancer.algorithm }}
- --algorithm={{ . }}
{{- end }}
{{- with $v.loadBalancer.maglevTableSize }}
- --maglev-table-size={{ . | int }}
{{- end }}
{{- $health := printf "%s:%s" (include "millrace.bracketed" $v.healthz.bindAddress) (include "millrace.healthzPort" .) }}
{{- /* The probes ask this port, whatever a configuration file has. */ -}}
{{- if or $v.config $v.kubeProxyConfigMap (ne $health "0.0.0.0:10256") }}
- --healthz-bind-address={{ $health }}
{{- end }}
{{- $metrics := printf "%s:%s" (include "millrace.bracketed" $v.metrics.bindAddress) (include "millrace.metricsPort" .) }}
{{- if not $v.metrics.enabled }}
- --metrics-bind-address=
{{- else if ne $metrics "127.0.0.1:10249" }}
- --metrics-bind-address={{ $metrics }}
{{- end }}
{{- with $v.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "millrace.env" -}}
{{- with .Values.k8sServiceHost }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $.Values.k8sServicePort | int | quote }}
{{- end }}
{{- end -}}

{{- /* The files that name the API server. */ -}}
{{- define "millrace.apiMounts" -}}
{{- if .Values.kubeProxyConfigMap }}
- name: kube-proxy
  mountPath: /var/lib/kube-proxy
  readOnly: true
{{- end }}
{{- with .Values.kubeconfig }}
- name: kubeconfig
  mountPath: {{ . }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "millrace.apiVolumes" -}}
{{- with .Values.kubeProxyConfigMap }}
- name: kube-proxy
  configMap:
    name: {{ . }}
{{- end }}
{{- with .Values.kubeconfig }}
- name: kubeconfig
  hostPath:
    path: {{ . }}
    type: File
{{- end }}
{{- end -}}

{{- define "millrace.configMounts" -}}
{{- if .Values.config }}
- name: config
  mountPath: /etc/millrace
  readOnly: true
{{- end }}
{{- include "millrace.apiMounts" . }}
{{- end -}}

{{- define "millrace.configVolumes" -}}
{{- if .Values.config }}
- name: config
  configMap:
    name: {{ include "millrace.name" . }}
{{- end }}
{{- include "millrace.apiVolumes" . }}
{{- end -}}
