#!/bin/sh
# Slurm drains every node whose Prolog is named in slurm.conf and cannot be run. As long as slurm.conf names our
# programs, something that lets every job through stands in their place: base-preremove.sh has put it there.
set -e

dir=/usr/libexec/clustermax

named() {
    # slurm.conf as distributed, as cached by a configless slurmd, and ours if included.
    for conf in /etc/slurm/slurm.conf /etc/slurm-llnl/slurm.conf /run/slurm/conf/slurm.conf \
        /var/spool/slurmd/conf-cache/slurm.conf /var/spool/slurm/d/conf-cache/slurm.conf \
        /usr/local/etc/slurm.conf /opt/slurm/etc/slurm.conf; do
        if [ -f "$conf" ] && grep -v '^[[:space:]]*#' "$conf" | grep -q "/clustermax/"; then
            echo "$conf"
            return 0
        fi
    done
    # Links in a folder of prologs, and scripts of the site's that call ours.
    for conf in /etc/slurm /etc/slurm-llnl; do
        if [ -n "$(find "$conf" -lname '*/libexec/clustermax/*' 2>/dev/null)" ] ||
            grep -rqs '/libexec/clustermax/clustermax-' "$conf"; then
            echo "$conf"
            return 0
        fi
    done
    return 1
}

clear_away() {
    for name in clustermax-prolog clustermax-epilog healthcheckprogram; do
        if [ -f "$dir/$name" ] && grep -q 'The package clustermax is removed' "$dir/$name" 2>/dev/null; then
            rm -f "$dir/$name"
        fi
    done
    rmdir "$dir" 2>/dev/null || true
}

case "${1:-}" in
remove | 0)
    if conf=$(named); then
        # An included snippet goes with the package, and a missing include stops Slurm's daemons.
        if grep -qis '^[[:space:]]*include[[:space:]].*/usr/share/clustermax/slurm/slurm.conf' "$conf"; then
            mkdir -p /usr/share/clustermax/slurm
            echo "# The package clustermax is removed; $conf still includes this file." >/usr/share/clustermax/slurm/slurm.conf
        fi
        echo "clustermax: $conf still names our programs: take the lines out and run scontrol reconfigure. Until then" >&2
        echo "clustermax: scripts that let every job through stand in $dir." >&2
    fi
    ;;
purge)
    if ! named >/dev/null; then
        clear_away
    fi
    rm -rf /var/lib/clustermax /var/log/clustermax /run/clustermax
    ;;
esac
exit 0
