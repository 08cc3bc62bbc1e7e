#!/bin/bash
# One task a node: what our own prolog took for this job, from the verdicts that clustermax-healthcheck leaves in its RUN_DIR
# (checks.json, readable by all). `cmx-life NODE prolog EPOCH SECONDS`; silent where it is not installed.
set -u
node=${SLURMD_NODENAME:-$(uname -n)}
# As every program of ours finds it.
config=${CLUSTERMAX_CONFIG:-}
if [[ -z $config && -n ${SLURM_CONF:-} && -r ${SLURM_CONF%/*}/clustermax.toml ]]; then
    config=${SLURM_CONF%/*}/clustermax.toml
fi
run_dir=$(sed -n 's/^run_dir *= *"\(.*\)"/\1/p' "${config:-/etc/clustermax/clustermax.toml}" 2>/dev/null | head -n1)
file=${run_dir:-/run/clustermax}/checks.json
file=${file//%n/$node}
[[ -r $file ]] || exit 0
pass=$(grep -o '"prolog":{[^}]*}' "$file" | head -n1)
if [[ $pass =~ \"time\":([0-9.]+) ]]; then
    when=${BASH_REMATCH[1]}
    [[ $pass =~ \"seconds\":([0-9.]+) ]] && echo "cmx-life $node prolog $when ${BASH_REMATCH[1]}"
fi
exit 0
