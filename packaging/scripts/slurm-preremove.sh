#!/bin/sh
# A plugin that plugstack.conf requires and that is gone stops every srun, sbatch, salloc and slurmd.
set -e

case "${1:-}" in
remove | 0)
    for conf in /etc/slurm/plugstack.conf /etc/slurm/plugstack.conf.d/*.conf /etc/slurm-llnl/plugstack.conf \
        /run/slurm/conf/plugstack.conf /var/spool/slurmd/conf-cache/plugstack.conf; do
        if [ -f "$conf" ] && grep -q '^[[:space:]]*required[[:space:]].*spank_clustermax\.so' "$conf"; then
            echo "clustermax: $conf requires spank_clustermax.so: without it no job could start. Take the line out" >&2
            echo "clustermax: of it everywhere, restart slurmd, and remove the package then." >&2
            exit 1
        fi
    done
    ;;
esac
exit 0
