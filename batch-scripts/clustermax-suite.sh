#!/bin/bash
#SBATCH --job-name=clustermax-suite
#SBATCH --exclusive
#SBATCH --time=30
#SBATCH --signal=B:TERM@60
#SBATCH --output=clustermax-suite-%j.out
#
# Measures a Slurm cluster and scores it: all stages are steps of this one job. See --help.

set -u
begin=$EPOCHREALTIME
# Decimal points, and messages that can be compared.
export LC_ALL=C

usage() {
    cat <<'END'
Usage: sbatch [SLURM OPTIONS] clustermax-suite.sh [OPTIONS]

Measures the nodes of its allocation and ends in a score. Runs as an ordinary user.
Ordinary Slurm options choose the nodes: -N 4, -p PARTITION, --gres=gpu:8, -w NODES ...

Options:
  --profile NAME   demo (default): small sizes, a minute or two
                   smoke: longer, and a burn-in of two minutes; below ten minutes in all
  --results DIR    results folder, new or empty, seen by all nodes
                   (default: clustermax-results/RUNID in the folder of submission)
  --resume DIR     continue the run in DIR: only stages that are not done run again
  --stages A,B     only these: lifecycle inventory audit collectives gemm train storage burnin (smoke)
  --deadline SEC   longest time of any one stage (default: by stage and profile, 60 to 240 s)
  --python FILE    Python with torch (default: CLUSTERMAX_PYTHON, /usr/bin/python3, python3 in PATH)
  --prefix DIR     where ClusterMAX is installed (default: CLUSTERMAX_PREFIX, the folder of the
                   script that was submitted, /usr, /usr/local)
  --config FILE    the node programs' configuration (default: CLUSTERMAX_CONFIG,
                   clustermax.toml beside SLURM_CONF, /etc/clustermax/clustermax.toml)
  --help           this text

Also read: CLUSTERMAX_BIN (folder of the program clustermax), GLOO_SOCKET_IFNAME, NCCL_*.
Exit code: 0 every stage ran or named what it lacks; 1 a stage failed or ran into its deadline;
2 bad options or results folder; 3 a part of ClusterMAX is missing.
END
}

say() { printf 'clustermax %(%H:%M:%S)T  %s\n' -1 "$*"; }
die() {
    local code=$1
    shift
    printf 'clustermax-suite.sh: %s\n' "$*" >&2
    exit "$code"
}

all_stages=(lifecycle inventory audit collectives gemm train storage)
# Seconds a stage may take with the demo profile; it takes a fraction of that. All of smoke's together stay below the
# job's half hour.
declare -A limits=([lifecycle]=60 [inventory]=60 [audit]=90 [collectives]=120 [gemm]=60 [train]=120 [storage]=120)

profile=demo results='' resume='' stages='' deadline='' python='' prefix='' config=''
while (($#)); do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --profile | --results | --resume | --stages | --deadline | --python | --prefix | --config)
            (($# > 1)) || die 2 "$1 needs a value; see --help"
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        --profile=* | --results=* | --resume=* | --stages=* | --deadline=* | --python=* | --prefix=* | --config=*)
            name=${1%%=*}
            printf -v "${name#--}" %s "${1#*=}"
            shift
            ;;
        *) die 2 "unknown option $1; see --help" ;;
    esac
done
case $profile in
    demo) ;;
    smoke)
        all_stages+=(burnin)
        limits+=([collectives]=240 [gemm]=150 [train]=240 [storage]=180 [burnin]=240)
        ;;
    *) die 2 "there is no profile $profile; give --profile demo or smoke" ;;
esac
if [[ -n $deadline ]]; then
    [[ $deadline =~ ^[1-9][0-9]{0,4}$ ]] || die 2 "--deadline $deadline: give whole seconds, 1 to 99999"
    for stage in "${all_stages[@]}"; do
        limits[$stage]=$deadline
    done
fi
[[ -z $resume || -z $results ]] || die 2 "--resume DIR and --results DIR exclude each other; give one of them"
selected=("${all_stages[@]}")
if [[ -n $stages ]]; then
    IFS=, read -ra selected <<<"$stages"
    for stage in "${selected[@]}"; do
        [[ -n ${limits[$stage]:-} ]] || die 2 "there is no stage $stage; stages are ${all_stages[*]}"
    done
fi
if [[ -z ${SLURM_JOB_ID:-} ]]; then
    die 2 "this is a batch script: submit it with \`sbatch -N NODES clustermax-suite.sh\`, see --help"
fi

# Slurm runs a copy of this script from its spool folder, so $0 says nothing. What was submitted, it remembers.
# Times as seconds since the epoch.
job=$(SLURM_TIME_FORMAT=%s scontrol -o show job "$SLURM_JOB_ID" 2>/dev/null)
command_dir=''
if [[ $job =~ \ Command=(/[^=]*)/(clustermax-suite\.sh|stages/[a-z]+\.sbatch) ]]; then
    command_dir=${BASH_REMATCH[1]}
fi

# Folder that holds stages/ and payload/.
parts=''
for dir in ${prefix:+"$prefix"} ${CLUSTERMAX_PREFIX:+"$CLUSTERMAX_PREFIX"} ${command_dir:+"$command_dir"} /usr /usr/local; do
    for below in /batch-scripts /share/clustermax/batch-scripts /libexec/clustermax/batch-scripts ''; do
        if [[ -z $parts && -r $dir$below/stages/lib.sh ]]; then
            parts=$dir$below
            root=$dir
        fi
    done
    # A prefix that was asked for is right or an error; another one would be a surprise.
    if [[ -z $parts && $dir == "${prefix:-}" ]]; then
        die 3 "$prefix has no batch-scripts/stages; give --prefix the folder that ClusterMAX was installed into"
    fi
done
[[ -n $parts ]] || die 3 "the stages cannot be found; give --prefix DIR or set CLUSTERMAX_PREFIX"

clustermax=''
for dir in ${CLUSTERMAX_BIN:+"$CLUSTERMAX_BIN"} "$root/bin" "$root" "$root/libexec/clustermax" "$parts/../bin" "$parts/.." \
    "$parts/../target/release" "$parts/../target/debug" /usr/bin /usr/local/bin /usr/libexec/clustermax; do
    if [[ -z $clustermax && -f $dir/clustermax && -x $dir/clustermax ]]; then
        clustermax=$dir/clustermax
    fi
done
[[ -n $clustermax ]] || clustermax=$(command -v clustermax) ||
    die 3 "the program clustermax cannot be found; give --prefix DIR or set CLUSTERMAX_BIN to its folder"

[[ -z $config ]] || export CLUSTERMAX_CONFIG=$config

# The first interpreter that has torch; without any, its stages say what is missing.
if [[ -z $python ]]; then
    python=${CLUSTERMAX_PYTHON:-}
fi
if [[ -z $python ]]; then
    python=/usr/bin/python3
    for candidate in /usr/bin/python3 python3; do
        if "$candidate" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
fi

nodes=$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" | paste -sd,)
[[ -n $nodes ]] || die 3 "the nodes of job $SLURM_JOB_ID cannot be told; does scontrol answer on $(uname -n)?"
cluster=${SLURM_CLUSTER_NAME:-$(scontrol show config 2>/dev/null | sed -n 's/^ClusterName *= *//p')}
run=$(date -u +%Y%m%dT%H%M%SZ)-$SLURM_JOB_ID
results=${resume:-${results:-${SLURM_SUBMIT_DIR:-$PWD}/clustermax-results/$run}}
# Steps start in the folder of submission, but a payload's path must not hang on that.
[[ $results == /* ]] || results=${SLURM_SUBMIT_DIR:-$PWD}/$results

scratch=$(mktemp -d) || die 3 "no temporary folder can be made in ${TMPDIR:-/tmp}; set TMPDIR"
# shellcheck disable=SC2317  # called by the trap
cleanup() { rm -rf -- "$scratch"; }
trap cleanup EXIT

# Not as a step: the first step of the job is what the stage lifecycle measures.
device=cpu gpus=0 torch=1 missing=''
if ! command -v "$python" >/dev/null; then
    torch=0 missing="there is no interpreter $python; choose another with --python"
elif answer=$("$python" "$parts/payload/probe.py" --out "$scratch" 2>"$scratch/probe.err"); then
    read -r device gpus <<<"${answer##*$'\n'}"
else
    torch=0 missing=$(tail -n1 "$scratch/probe.err")
fi
hardware=cpu
[[ $device == cpu ]] || hardware=gpu

init=(--cluster "$cluster" --nodes "$nodes" --profile "$profile" --job "$SLURM_JOB_ID" --hardware "$hardware")
[[ -z $resume ]] && init+=(--run "$run") || init+=(--resume)
[[ -z $config ]] || init+=(--config "$config")
begun=$("$clustermax" collect init "$results" "${init[@]}") || exit
run=${begun%%$'\n'*}
run=${run#run }

export CMX_PARTS=$parts CMX_CLUSTERMAX=$clustermax CMX_PYTHON=$python CMX_PROFILE=$profile CMX_RESULTS=$results
export CMX_DEVICE=$device CMX_TORCH=$torch CMX_BEGIN=$begin CMX_NODE_NAMES=$nodes CMX_GPUS=$gpus
CMX_NODES=$(tr , '\n' <<<"$nodes" | wc -l)
if [[ $device == cuda ]]; then
    CMX_RANKS_PER_NODE=$gpus
elif ((CMX_NODES == 1)); then
    # Two, or there would be nobody to communicate with.
    CMX_RANKS_PER_NODE=2
else
    CMX_RANKS_PER_NODE=1
fi
# The demo is light on purpose: it runs on nodes that share one machine as well.
CMX_THREADS=1
CMX_TORCH_MISSING=$missing
CMX_JOB_START=$(sed -n 's/.* StartTime=\([^ ]*\).*/\1/p' <<<"$job")
export CMX_NODES CMX_RANKS_PER_NODE CMX_THREADS CMX_TORCH_MISSING CMX_JOB_START
# These would change what the steps below ask for.
unset SLURM_NTASKS_PER_NODE SLURM_CPU_BIND SLURM_DISTRIBUTION SLURM_CPUS_PER_TASK SLURM_MPI_TYPE SLURM_GPU_BIND SLURM_GPUS \
    SLURM_GPUS_PER_TASK SLURM_GPUS_PER_SOCKET SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_SOCKET SLURM_NTASKS_PER_CORE

say "run $run on cluster $cluster: nodes $nodes ($CMX_NODES), $device, results in $results"
if [[ -z ${SLURM_GPUS_ON_NODE:-} ]] && scontrol -o show node "${nodes%%,*}" 2>/dev/null | grep -q ' Gres=[^ ]*gpu'; then
    say "these nodes have GPUs and this job was given none: submit it with --gres=gpu:N to measure them"
fi
if [[ -s $scratch/probe.json ]]; then
    mkdir -p "$results/raw/inventory" && mv "$scratch/probe.json" "$results/raw/inventory/"
fi
if ! ((torch)); then
    say "no torch: $missing"
fi

todo=() left=0 failed=0
for stage in "${selected[@]}"; do
    if [[ $begun == *$'\n'"done $stage"* ]]; then
        say "$stage is done, not run again"
        # Its raw output is read again: that mends a records.jsonl that was cut short.
        "$clustermax" collect "$stage" "$results" >/dev/null || failed=1
    else
        todo+=("$stage")
        ((left += limits[$stage]))
    fi
done

# Slurm sends TERM one minute before the job's time is up: what has been measured is then still scored.
stopping=0 child=''
# shellcheck disable=SC2317  # called by the trap
stop() {
    stopping=1
    [[ -z $child ]] || kill -TERM "$child" 2>/dev/null
}
trap stop TERM INT

# Ends steps that a stage left behind; the batch step itself has no number.
end_steps() {
    local step
    for step in $(squeue -h -s -j "$SLURM_JOB_ID" -o %i 2>/dev/null); do
        [[ $step =~ \.[0-9]+$ ]] && scancel --signal=KILL "$step" 2>/dev/null
    done
}

# Last line that a program of the stage wrote; Slurm's own lines (and our plug-in's) only when there is no other.
last_words() {
    local line
    line=$(grep -v -e '^srun: ' -e '^slurmstepd' -e '^clustermax: ' -e '^ *$' "$1" | tail -n1)
    [[ -n $line ]] || line=$(grep -v '^ *$' "$1" | tail -n1)
    printf %s "${line:0:300}"
}

number=0
for stage in "${todo[@]}"; do
    number=$((number + 1))
    limit=${limits[$stage]}
    if ((stopping)); then
        "$clustermax" collect "$stage" "$results" --state deadline --job "$SLURM_JOB_ID" \
            --reason "the job's time was up before the stage could start" >/dev/null
        failed=1
        continue
    fi
    say "[$number/${#todo[@]}] $stage: at most $limit s, all that is left at most $left s"
    export CMX_STAGE=$stage CMX_RAW=$results/raw/$stage CMX_REASON=$scratch/reason
    : >"$CMX_REASON"
    # What an earlier attempt left must not be taken for this one's; the interpreter's probe is of this job.
    [[ ! -d $CMX_RAW ]] || find "$CMX_RAW" -mindepth 1 ! -name probe.json -delete
    mkdir -p "$CMX_RAW" || die 2 "$CMX_RAW cannot be made; give --results a folder you may write to"
    started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    before=$EPOCHREALTIME
    timeout -k 10 "$limit" bash "$parts/stages/$stage.sbatch" >"$CMX_RAW/stage.log" 2>&1 &
    child=$!
    wait "$child"
    code=$?
    # A trap ends the wait early; the stage itself has then been told to stop.
    while kill -0 "$child" 2>/dev/null; do
        wait "$child"
        code=$?
    done
    child=''
    seconds=$(awk -v a="$before" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f", b - a }')
    reason=$(<"$CMX_REASON")
    case $code in
        0) state="done" ;;
        3) state=unavailable ;;
        124 | 137 | 143)
            # A task that was killed for another reason (memory) has the same codes before the deadline.
            if ((stopping)); then
                state=deadline reason="the job's time was up"
            elif ((${seconds%.*} >= limit)); then
                state=deadline reason="the stage was stopped at its deadline of $limit s"
            else
                state=failed reason="exit code $code: $(last_words "$CMX_RAW/stage.log")"
            fi
            end_steps
            failed=1
            ;;
        *)
            state=failed
            [[ -n $reason ]] || reason="exit code $code: $(last_words "$CMX_RAW/stage.log")"
            failed=1
            ;;
    esac
    collect=(collect "$stage" "$results" --state "$state" --exit-code "$code" --started "$started" --seconds "$seconds"
        --job "$SLURM_JOB_ID")
    [[ -z $reason ]] || collect+=(--reason "$reason")
    summary=$("$clustermax" "${collect[@]}") || failed=1
    say "[$number/${#todo[@]}] $stage: $state in ${seconds%??} s; ${summary#*: }${reason:+ ($reason)}"
    left=$((left - limit))
done

say "scoring"
"$clustermax" score "$results"
code=$?
# 1 is an answer: no rating can be given, and the report says why.
((code <= 1)) || exit "$code"
awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "clustermax: %.0f s in all\n", b - a }'
exit "$failed"
