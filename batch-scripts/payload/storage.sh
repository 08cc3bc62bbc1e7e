#!/bin/bash
# One task a node: fio into the results folder (shared) and the node's temporary folder (local).
# Usage: storage.sh RAW SECONDS
#   each job SECONDS long: RAW/NODE.TARGET.json as fio gives it, or NODE.TARGET.txt with one sentence where it cannot run
#        storage.sh RAW sweep SECONDS CLIENTS HERE MIB
#   the same folder by CLIENTS clients, HERE of them on this node, with files of MIB: RAW/sweep-CLIENTS.NODE.json or .txt
#        storage.sh RAW endurance SECONDS WINDOW MIB
#   one stream written, then read, SECONDS each, its bandwidth in windows: RAW/endurance-write.NODE.log (fio's log), or .txt
set -u
raw=$1 part=$2
node=${SLURMD_NODENAME:-$(uname -n)}
work=''
trap '[[ -z $work ]] || rm -rf -- "$work"' EXIT

# Makes the folder $work below $1, with so many KiB free; else says in $2 why not.
prepare() {
    local base=$1 refused=$2 need=$3 free
    if ! command -v fio >/dev/null; then
        echo "fio is not installed on $node (not in PATH)" >"$refused"
        return 1
    fi
    if [[ ! -d $base ]]; then
        echo "$base does not exist on $node; set TMPDIR to a folder that does" >"$refused"
        return 1
    fi
    free=$(df --output=avail -k "$base" 2>/dev/null | tail -n1)
    free=${free// /}
    if ((${free:-$need} < need)); then
        echo "$base on $node has $free KiB free and fio needs $need; free space or set TMPDIR" >"$refused"
        return 1
    fi
    if ! work=$(mktemp -d "$base/clustermax-fio.$node.XXXXXX" 2>/dev/null); then
        echo "$base on $node cannot be written (read-only, or not yours); set TMPDIR to a folder that can" >"$refused"
        work=''
        return 1
    fi
    # O_DIRECT keeps the page cache out; tmpfs and some FUSE file systems refuse it.
    direct=1
    dd if=/dev/zero of="$work/direct" bs=4096 count=1 oflag=direct status=none 2>/dev/null || direct=0
    rm -f -- "$work/direct"
}

# Runs $work/job.fio; its document appears at $1 whole or not at all.
measure() {
    local code=0
    fio --output-format=json --output="$work/out.json" "$work/job.fio" || code=$?
    mv -- "$work/out.json" "$1.tmp" && mv -- "$1.tmp" "$1"
    return "$code"
}

done_with_it() {
    rm -rf -- "$work"
    work=''
}

job() { # NAME KEY=VALUE ...: a job of the sweep
    printf '[%s]\n' "$1" && shift && printf '%s\n' "$@"
} >>"$work/job.fio"

sweep() {
    local seconds=$1 clients=$2 here=$3 mib=$4 output=$raw/sweep-$2.$node
    # At most half of what is free, by all clients together.
    local free
    free=$(df --output=avail -k "$raw" 2>/dev/null | tail -n1)
    free=${free// /}
    ((${free:-0} == 0 || mib * clients * 2 <= free / 1024)) || mib=$((free / 1024 / 2 / clients))
    ((mib >= 4)) || mib=4
    prepare "$raw" "$output.txt" $((mib * here * 1024 + 4096)) || return 0
    cat >"$work/job.fio" <<END_OF_JOB
[global]
directory=$work
filename_format=data.\$jobnum
size=${mib}m
numjobs=$here
ioengine=psync
invalidate=1
group_reporting=1
stonewall
runtime=$seconds
END_OF_JOB
    # Buffered reads go through the file once: a second time they would measure this node's memory.
    job seqwrite_buffered rw=write bs=1m direct=0 end_fsync=1 time_based=1
    job seqread_buffered rw=read bs=1m direct=0
    job randread_buffered rw=randread bs=4k direct=0
    if ((direct)); then
        job seqwrite_direct rw=write bs=1m direct=1 time_based=1
        job seqread_direct rw=read bs=1m direct=1 time_based=1
        job randread_direct rw=randread bs=64k direct=1 time_based=1
    fi
    measure "$output.json" || return
    done_with_it
}

endurance() {
    local seconds=$1 window=$2 mib=$3 rw
    prepare "$raw" "$raw/endurance.$node.txt" $((mib * 1024 + 4096)) || return 0
    for rw in write read; do
        cat >"$work/job.fio" <<END_OF_JOB
[endurance]
directory=$work
filename=data
size=${mib}m
rw=$rw
bs=1m
direct=$direct
ioengine=psync
invalidate=1
time_based=1
runtime=$seconds
write_bw_log=$work/$rw
per_job_logs=0
log_avg_msec=$((window * 1000))
END_OF_JOB
        measure "$raw/endurance-$rw.$node.json" || return
        mv -- "$work/${rw}_bw.log" "$raw/endurance-$rw.$node.log"
    done
    done_with_it
}

base() {
    local runtime=$1 target base refused code=0
    for target in shared local; do
        case $target in
            shared) base=$raw ;;
            local) base=${TMPDIR:-/tmp} ;;
        esac
        # What is measured: its type decides whether it can be shared at all.
        findmnt -n -o FSTYPE,SOURCE -T "$base" >"$raw/$node.$target.where" 2>/dev/null
        refused=$raw/$node.$target.txt
        prepare "$base" "$refused" 65536 || continue
        cat >"$work/job.fio" <<END_OF_JOB
[global]
directory=$work
filename=data
size=32m
direct=$direct
ioengine=psync
time_based=1
runtime=$runtime
invalidate=1
group_reporting=1
stonewall
[seqwrite]
rw=write
bs=1m
end_fsync=1
[seqread]
rw=read
bs=1m
[randread]
rw=randread
bs=4k
[randwrite]
rw=randwrite
bs=4k
[fsync]
rw=write
bs=4k
direct=0
fsync=1
END_OF_JOB
        measure "$raw/$node.$target.json" || code=$?
        done_with_it
    done
    return "$code"
}

case $part in
    sweep | endurance) "$part" "${@:3}" ;;
    *) base "$part" ;;
esac
