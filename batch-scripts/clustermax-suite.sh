#!/bin/bash
#SBATCH --job-name=clustermax-suite
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=30
#SBATCH --signal=B:TERM@120
#SBATCH --output=clustermax-suite-%j.out
#
# Measures a Slurm cluster and scores it: all stages are steps of this one job.
#
#   sbatch [SLURM OPTIONS] clustermax-suite.sh [--profile demo|smoke|quick|full|acceptance] [OPTIONS]
#
# Runs as an ordinary user. Slurm's options choose the nodes: -N 4, -p PARTITION, --gres=gpu:8, -w NODES, --time=MINUTES ...
# Its own options are those of `clustermax suite run` (--help); `clustermax suite plan` says what will run and for how long.
set -u
export CMX_BEGIN=${EPOCHREALTIME/,/.}

# A job may come without any (sbatch --export=NONE): what stands in PATH goes first.
export PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin

unset POSIXLY_CORRECT # squeue would refuse its options
# Slurm runs a copy of this script from its spool folder, so $0 says nothing there. What was submitted, Slurm remembers.
script=$0
if [[ -n ${SLURM_JOB_ID:-} ]]; then
    script=$(squeue -h -j "$SLURM_JOB_ID" -o %o 2>/dev/null) || {
        script=$0
        echo "clustermax-suite.sh: squeue does not tell what was submitted; is it in PATH ($PATH)?" >&2
    }
fi
# Some releases put its arguments after it.
here=${script%%/clustermax-suite.sh*}
prefix=${CLUSTERMAX_PREFIX:-}
for ((i = 1; i < $#; i++)); do
    [[ ${!i} != --prefix ]] || { next=$((i + 1)) && prefix=${!next}; }
done

clustermax=''
for dir in ${CLUSTERMAX_BIN:+"$CLUSTERMAX_BIN"} ${prefix:+"$prefix/bin" "$prefix" "$prefix/libexec/clustermax"} \
    "$here/../bin" "$here/.." "$here/../target/release" "$here/../target/debug" /usr/bin /usr/local/bin; do
    if [[ -z $clustermax && -f $dir/clustermax && -x $dir/clustermax ]]; then
        clustermax=$dir/clustermax
    fi
done
if [[ -z $clustermax ]] && ! clustermax=$(command -v clustermax); then
    echo "clustermax-suite.sh: the program clustermax cannot be found; give --prefix DIR or set CLUSTERMAX_BIN to its folder" >&2
    exit 3
fi
# Slurm's signal reaches the program itself: what has been measured is then still scored.
exec "$clustermax" suite run "$@"
