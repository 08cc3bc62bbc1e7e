#!/bin/bash
# One task a node, where nccl-tests will run (in their container, if there is one): the programs and how they were built,
# the fabric's device files, GPUs, and every setting of NCCL, RCCL, UCX, Open MPI, PMIx and libfabric with its origin.
# Tells facts, a line each (`cmx-nccl NODE KEY VALUES`, parted by tabs; the tag because a SPANK plug-in may print lines of
# its own), and judges nothing.
# Usage: nccl-facts.sh INSIDE FOLDER COLLECTIVE...: INSIDE is yes in a container; FOLDER is where the programs must be, or ''.
set -u
inside=$1 given=$2
shift 2
node=${SLURMD_NODENAME:-$(uname -n)}
say() { # Neither tabs nor newlines inside of a value.
    local line=cmx-nccl word
    for word in "$node" "$@"; do line+=$'\t'${word//[$'\t\r\n']/ }; done
    printf '%s\n' "$line"
}

# The folders of NVIDIA's, AMD's and the clouds' images, after PATH. What was given is meant: nothing else is taken for it.
folders=()
if [[ -n $given ]]; then
    folders=("$given" "$given/build")
else
    IFS=: read -r -a folders <<<"$PATH"
    folders+=(/opt/nccl_tests/build /opt/nccl-tests/build /opt/oci-hpc/nccl-test/build /opt/rccl-tests/build
        /usr/local/nccl-tests/build /opt/nccl-tests/bin)
fi
for collective; do
    for folder in "${folders[@]}"; do
        # Images have both; only the one with MPI makes one world of all tasks.
        for file in "$folder/${collective}_perf_mpi" "$folder/${collective}_perf"; do
            [[ -f $file && -x $file ]] || continue
            built=plain
            # The name of the MPI library stands in the file.
            LC_ALL=C grep -q libmpi -- "$file" 2>/dev/null && built=mpi
            say program "$collective" "$file" "$built"
            continue 3
        done
    done
done

# NCCL Inspector: the library that the job names, else one where libraries lie.
IFS=: read -r -a libraries <<<"${LD_LIBRARY_PATH:-}"
named=${NCCL_PROFILER_PLUGIN:-}
[[ ${named##*/} == *inspector* ]] || named=''
for file in "$named" "${libraries[@]/%//libnccl-profiler-inspector.so}" \
    /{usr/lib/x86_64-linux-gnu,usr/lib/aarch64-linux-gnu,usr/lib64,usr/local/lib,usr/local/nccl/lib,opt/nccl/lib,opt/rocm/lib}/libnccl-profiler-inspector.so; do
    [[ $file == /* && -f $file && -r $file ]] || continue
    say inspector "$file"
    break
done

device=none
[[ -e /dev/kfd ]] && device=amd
[[ -e /dev/nvidiactl ]] && device=nvidia
say device "$device"

rdma=$(cd /sys/class/infiniband 2>/dev/null && echo *)
[[ $rdma != '*' ]] || rdma=''
verbs=0
for file in /dev/infiniband/uverbs*; do [[ -r $file && -w $file ]] && verbs=$((verbs + 1)); done
printf 'cmx-pre %s fabric %s %s %s\n' "$node" "$inside" "$verbs" "${rdma:-none}"

# As NCCL reads them: the files, then the environment, which wins.
own=${HOME:-}/.nccl.conf
for file in /etc/nccl.conf "${NCCL_CONF_FILE:-$own}"; do
    [[ -f $file && -r $file ]] || continue
    mapfile -t lines <"$file"
    for line in "${lines[@]}"; do
        line=${line%%#*}
        [[ $line == *=* ]] || continue
        name=${line%%=*} value=${line#*=}
        name=${name//[[:space:]]/}
        value=${value#"${value%%[![:space:]]*}"}
        say setting "$name" "${value%"${value##*[![:space:]]}"}" "$file"
    done
done
for name in ${!NCCL_@} ${!RCCL_@} ${!UCX_@} ${!OMPI_MCA_@} ${!PMIX_MCA_@} ${!FI_@}; do
    say setting "$name" "${!name}" environment
done
