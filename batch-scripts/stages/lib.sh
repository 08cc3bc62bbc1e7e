# Sourced by every stage. What the suite has set:
#   CMX_RAW             folder for the stage's raw output, seen by all nodes
#   CMX_REASON          file for one sentence: why the stage cannot run
#   CMX_PARTS           folder of stages/ and payload/
#   CMX_PYTHON CMX_TORCH CMX_DEVICE   interpreter, whether it has torch, cpu or cuda
#   CMX_NODES CMX_NODE_NAMES CMX_RANKS_PER_NODE CMX_THREADS CMX_GPUS
# Exit codes of a stage: 0 ran; 3 something it needs is not here (CMX_REASON says what); others failed.
# shellcheck shell=bash
set -u

# cmx_srun TASKS-PER-NODE COMMAND...: one step on all nodes. --overlap: a stuck step of an earlier stage blocks
# nobody. --overcommit: an allocation of one CPU a node is enough. One failed task ends the step: the rest would wait
# in a collective. A job of --exclusive owns the GPUs, but a step is given them only when it asks.
cmx_srun() {
    local per=$1
    shift
    srun --quiet --overlap --overcommit --mpi=none --cpu-bind=none --kill-on-bad-exit=1 --nodes="$CMX_NODES" \
        --ntasks-per-node="$per" --ntasks=$((CMX_NODES * per)) ${SLURM_GPUS_ON_NODE:+--gres=gpu:"$SLURM_GPUS_ON_NODE"} "$@" </dev/null
}

# cmx_torch PAYLOAD OPTIONS...: one task a rank. All end together: 20 s after the first one the rest is stuck.
cmx_torch() {
    local payload=$1
    shift
    cmx_srun "$CMX_RANKS_PER_NODE" --wait=20 "$CMX_PYTHON" "$CMX_PARTS/payload/$payload" --out "$CMX_RAW" \
        --device "$CMX_DEVICE" --threads "$CMX_THREADS" "$@"
}

# cmx_unavailable SENTENCE: ends the stage.
cmx_unavailable() {
    printf '%s' "$*" >"$CMX_REASON"
    exit 3
}

# cmx_by_profile DEMO SMOKE: the setting of the run's profile.
cmx_by_profile() {
    case ${CMX_PROFILE:-demo} in
        smoke) printf %s "$2" ;;
        *) printf %s "$1" ;;
    esac
}

cmx_need_torch() {
    ((CMX_TORCH)) || cmx_unavailable "$CMX_TORCH_MISSING"
}
