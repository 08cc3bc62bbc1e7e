#!/bin/sh
set -e
case "${1:-}" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        systemctl disable --now clustermax-watch.service || true
    fi
    ;;
esac
exit 0
