#!/bin/bash
# One task a node: fio into the results folder (shared) and the node's temporary folder (local).
# Usage: storage.sh RAW SECONDS: writes RAW/NODE.TARGET.json as fio gives it, each job SECONDS long, or NODE.TARGET.txt with
# one sentence where it cannot run.
set -u
raw=$1 runtime=$2
node=${SLURMD_NODENAME:-$(uname -n)}

if ! command -v fio >/dev/null; then
    for target in shared local; do
        echo "fio is not installed on $node (not in PATH)" >"$raw/$node.$target.txt"
    done
    exit 0
fi

work=''
trap '[[ -z $work ]] || rm -rf -- "$work"' EXIT
code=0
for target in shared local; do
    case $target in
        shared) base=$raw ;;
        local) base=${TMPDIR:-/tmp} ;;
    esac
    if [[ ! -d $base ]]; then
        echo "$base does not exist on $node; set TMPDIR to a folder that does" >"$raw/$node.$target.txt"
        continue
    fi
    # What is measured: its type decides whether it can be shared at all.
    findmnt -n -o FSTYPE,SOURCE -T "$base" >"$raw/$node.$target.where" 2>/dev/null
    free=$(df --output=avail -k "$base" 2>/dev/null | tail -n1)
    if ((${free:-65536} < 65536)); then
        echo "$base on $node has ${free// /} KiB free and fio needs 65536; free space or set TMPDIR" >"$raw/$node.$target.txt"
        continue
    fi
    if ! work=$(mktemp -d "$base/clustermax-fio.$node.XXXXXX" 2>/dev/null); then
        echo "$base on $node cannot be written (read-only, or not yours); set TMPDIR to a folder that can" >"$raw/$node.$target.txt"
        work=''
        continue
    fi
    # O_DIRECT keeps the page cache out; tmpfs and some FUSE file systems refuse it.
    direct=1
    dd if=/dev/zero of="$work/direct" bs=4096 count=1 oflag=direct status=none 2>/dev/null || direct=0
    cat >"$work/job.fio" <<END
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
END
    output=$raw/$node.$target.json
    fio --output-format=json --output="$work/out.json" "$work/job.fio" || code=$?
    # Whole or not at all.
    mv -- "$work/out.json" "$output.tmp" && mv -- "$output.tmp" "$output"
    rm -rf -- "$work"
    work=''
done
exit "$code"
