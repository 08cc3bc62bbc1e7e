#!/bin/sh
# Slurm drains every node whose Prolog or Epilog is named in slurm.conf and cannot be run, for a moment even. As long as slurm.conf
# names our programs, what lets every job through takes their place before their files go, in one step each.
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

stand_in() {
    for name in clustermax-prolog clustermax-epilog healthcheckprogram; do
        printf '#!/bin/sh\n# The package clustermax is removed; slurm.conf still names this file.\nexit 0\n' >"$dir/.$name.new"
        chmod 755 "$dir/.$name.new"
        mv -fT "$dir/.$name.new" "$dir/$name"
    done
}

case "${1:-}" in
remove | 0)
    if named >/dev/null; then
        stand_in
    else
        rm -f "$dir/clustermax-prolog" "$dir/clustermax-epilog" "$dir/healthcheckprogram"
    fi
    if [ -d /run/systemd/system ]; then
        systemctl disable --now clustermax-watch.service clustermax-idle-check.timer || true
    fi
    ;;
esac
exit 0
