#!/bin/bash
# One task a node, before anything is measured: what could make the figures mislead. Tells facts, a line each
# (`cmx-pre NODE KEY VALUES`; the tag because a SPANK plug-in may print lines of its own), and judges nothing.
# Usage: preflight.sh OUT HEALTHCHECK no|yes|gpus: with clustermax-healthcheck, its view of the GPUs goes to
# OUT/NODE.gpus.json; yes: this runs in the suite's container; gpus: nothing but that view.
set -u
out=$1 healthcheck=${2:-} inside=${3:-no}
node=${SLURMD_NODENAME:-$(uname -n)}
say() { printf 'cmx-pre %s %s\n' "$node" "$*"; }
first() { local text=''; read -r text <"$1" && printf '%s' "$text"; } 2>/dev/null
busy() { # Jiffies that were not idle, and all.
    local user nice system idle wait irq soft
    read -r _ user nice system idle wait irq soft _ </proc/stat
    echo "$((user + nice + system + irq + soft)) $((user + nice + system + irq + soft + idle + wait))"
}

gpus() {
    [[ -x $healthcheck ]] || return 0
    # As every program of ours finds it.
    local config=${CLUSTERMAX_CONFIG:-}
    if [[ -z $config && -n ${SLURM_CONF:-} && -r ${SLURM_CONF%/*}/clustermax.toml ]]; then
        config=${SLURM_CONF%/*}/clustermax.toml
    fi
    timeout 20 "$healthcheck" facts --json --node "$node" ${config:+--config "$config"} >"$out/$node.gpus.tmp" 2>/dev/null
    mv -- "$out/$node.gpus.tmp" "$out/$node.gpus.json"
}
if [[ $inside == gpus ]]; then
    gpus
    exit
fi

say here
read -r before all_before <<<"$(busy)"

# Processors: what this task may use, and what the node has.
say cpus "$(nproc)" "$(nproc --all)"
# Memory: the smallest limit of the control groups above this task, and what the node has.
limit=''
while IFS=: read -r _ controllers path; do
    case ,$controllers, in
        ,,) top=/sys/fs/cgroup file=memory.max ;;
        *,memory,*) top=/sys/fs/cgroup/memory file=memory.limit_in_bytes ;;
        *) continue ;;
    esac
    while :; do
        value=$(first "$top$path/$file")
        [[ $value =~ ^[0-9]+$ ]] && { [[ -z $limit ]] || ((${#value} < ${#limit} || (${#value} == ${#limit} && value < limit))); } && limit=$value
        [[ -n $path && $path != / ]] || break
        path=${path%/*}
    done
done </proc/self/cgroup
total=$(while read -r key value _; do [[ $key == MemTotal: ]] && echo "$((value * 1024))" && break; done </proc/meminfo)
say memory "${limit:-none}" "${total:-0}"

# A container sees the fabric's devices in sysfs, but not always their device files.
if [[ -e /.dockerenv || -e /run/.containerenv || -n ${APPTAINER_CONTAINER:-}${SINGULARITY_CONTAINER:-}${ENROOT_ROOTFS:-} ]]; then
    inside=yes
fi
rdma=$(cd /sys/class/infiniband 2>/dev/null && echo *)
[[ $rdma != '*' ]] || rdma=''
verbs=0
for file in /dev/infiniband/uverbs*; do [[ -r $file && -w $file ]] && verbs=$((verbs + 1)); done
say fabric "$inside" "$verbs" "${rdma:-none}"

# GPUs: what Slurm gave this step, what it may see, and device files.
files=0
for file in /dev/nvidia[0-9] /dev/nvidia[0-9][0-9]; do [[ -c $file ]] && files=$((files + 1)); done
if [[ $files == 0 && -e /dev/kfd ]]; then
    for file in /dev/dri/renderD*; do [[ -c $file ]] && files=$((files + 1)); done
fi
visible=${CUDA_VISIBLE_DEVICES:-${ROCR_VISIBLE_DEVICES:-none}}
say gpus "${SLURM_GPUS_ON_NODE:-none}" "$visible" "$files"

# Network interfaces: state, Mb/s, a device of its own or not.
for folder in /sys/class/net/*; do
    speed=$(first "$folder/speed")
    [[ $speed =~ ^[0-9]+$ ]] || speed=0
    say net "${folder##*/}" "$(first "$folder/operstate")" "$speed" "$([[ -e $folder/device ]] && echo device || echo virtual)"
done

# Clocks and heat of the processors.
for folder in /sys/devices/system/cpu/cpu[0-9]*/cpufreq; do
    [[ -r $folder/scaling_max_freq ]] || continue
    echo "$(first "$folder/scaling_max_freq") $(first "$folder/cpuinfo_max_freq") $(first "$folder/scaling_governor")"
done | sort | uniq | while read -r most could governor; do say cpufreq "$most" "$could" "$governor"; done
hottest=0
for file in /sys/class/thermal/thermal_zone*/temp; do
    value=$(first "$file")
    [[ $value =~ ^[0-9]+$ ]] && ((value > hottest)) && hottest=$value
done
say heat "$hottest"

gpus
# A second of what others do: the processors' busy share while this script only waits.
read -r before all_before <<<"$(busy)"
sleep 0.5
read -r after all_after <<<"$(busy)"
say busy "$((100 * (after - before) / (all_after - all_before > 0 ? all_after - all_before : 1)))"
