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
# The mend where the results folder is what fails.
elsewhere='give --results a folder on storage that all nodes can write to'
node=${SLURMD_NODENAME:-$(uname -n)}
work=''
trap '[[ -z $work ]] || rm -rf -- "$work"' EXIT

# Makes the folder $work below $1, with so many KiB free; else says in $2 why not, and $4: what to do.
prepare() {
    local base=$1 refused=$2 need=$3 mend=$4 free said old pid
    if ! command -v fio >/dev/null; then
        echo "fio is not installed on $node (not in PATH)" >"$refused"
        return 1
    fi
    if ! said=$(LC_ALL=C stat -L -- "$base" 2>&1 >/dev/null); then
        case $said in
            *'No such file or directory') echo "$base does not exist on $node; $mend" ;;
            *) echo "$base on $node cannot be used (${said##*: }); $mend" ;; # a stale NFS handle
        esac >"$refused"
        return 1
    fi
    # What a killed one of this node left.
    for old in "$base/clustermax-fio.$node".*.*; do
        pid=${old#"$base/clustermax-fio.$node."}
        pid=${pid%%.*}
        [[ -d $old && ! -L $old && -O $old && $pid =~ ^[0-9]+$ && ! -d /proc/$pid ]] && rm -rf -- "$old"
    done
    free=$(df --output=avail -k "$base" 2>/dev/null | tail -n1)
    free=${free// /}
    if ((${free:-$need} < need)); then
        echo "$base on $node has $free KiB free and fio needs $need; free space or $mend" >"$refused"
        return 1
    fi
    if ! said=$(LC_ALL=C mktemp -d "$base/clustermax-fio.$node.$$.XXXXXX" 2>&1); then
        echo "$base on $node cannot be written (${said##*: }); $mend" >"$refused"
        return 1
    fi
    work=$said
    # fio parts folders at colons.
    directory=${work//:/\\:}
    # O_DIRECT keeps the page cache out; tmpfs and some FUSE file systems refuse it.
    direct=1
    dd if=/dev/zero of="$work/direct" bs=4096 count=1 oflag=direct status=none 2>/dev/null || direct=0
    rm -f -- "$work/direct"
}

# Runs $work/job.fio; its document appears at $1 whole or not at all, and then $2 says why.
measure() {
    local code=0 said
    said=$(fio --output-format=json --output="$work/out.json" "$work/job.fio" 2>&1) || code=$?
    [[ -z $said ]] || printf '%s\n' "$said" >&2
    if ! mv -- "$work/out.json" "$1.tmp" 2>/dev/null || ! mv -- "$1.tmp" "$1"; then
        said=${said##*$'\n'}
        echo "fio on $node left no result in $work (exit code $code${said:+: $said}); see that the folder stays there" >"$2"
        ((code)) || code=1
    fi
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
    prepare "$raw" "$output.txt" $((mib * here * 1024 + 4096)) "$elsewhere" || return 0
    cat >"$work/job.fio" <<END_OF_JOB
[global]
directory=$directory
filename_format=data.\$jobnum
size=${mib}m
numjobs=$here
ioengine=psync
invalidate=1
group_reporting=1
stonewall
runtime=$seconds
END_OF_JOB
    # Buffered jobs go through the file once: a second time they would measure this node's memory.
    job seqwrite_buffered rw=write bs=1m direct=0 end_fsync=1
    job seqread_buffered rw=read bs=1m direct=0
    job randread_buffered rw=randread bs=4k direct=0
    if ((direct)); then
        job seqwrite_direct rw=write bs=1m direct=1 time_based=1
        job seqread_direct rw=read bs=1m direct=1 time_based=1
        job randread_direct rw=randread bs=64k direct=1 time_based=1
    fi
    measure "$output.json" "$output.txt" || return
    done_with_it
}

endurance() {
    local seconds=$1 window=$2 mib=$3 rw
    local refused=$raw/endurance.$node.txt
    prepare "$raw" "$refused" $((mib * 1024 + 4096)) "$elsewhere" || return 0
    if ((!direct)); then
        echo "$raw on $node refuses O_DIRECT: lasting load would measure the node's memory" >"$refused"
        done_with_it
        return 0
    fi
    for rw in write read; do
        cat >"$work/job.fio" <<END_OF_JOB
[endurance]
directory=$directory
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
        measure "$raw/endurance-$rw.$node.json" "$refused" || return
        mv -- "$work/${rw}_bw.log" "$raw/endurance-$rw.$node.log"
    done
    done_with_it
}

base() {
    local runtime=$1 target base refused mend timed code=0 mib=32
    # A long test of a small file would be one of the server's cache.
    ((runtime < 10)) || mib=1024
    for target in shared local; do
        case $target in
            shared) base=$raw mend=$elsewhere ;;
            local) base=${TMPDIR:-/tmp} mend='set TMPDIR to a folder that can be written' ;;
        esac
        # What is measured: its type decides whether it can be shared at all.
        findmnt -n -o FSTYPE,SOURCE -T "$base" >"$raw/$node.$target.where" 2>/dev/null
        refused=$raw/$node.$target.txt
        prepare "$base" "$refused" $((mib * 2048)) "$mend" || continue
        # Through the page cache once: a second time it would measure the node's memory.
        timed=time_based=$direct
        cat >"$work/job.fio" <<END_OF_JOB
[global]
directory=$directory
filename=data
size=${mib}m
direct=$direct
ioengine=psync
$timed
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
end_fsync=1
[fsync]
rw=write
bs=4k
direct=0
fsync=1
time_based=1
END_OF_JOB
        measure "$raw/$node.$target.json" "$refused" || code=$?
        done_with_it
    done
    return "$code"
}

case $part in
    sweep | endurance) "$part" "${@:3}" ;;
    *) base "$part" ;;
esac
