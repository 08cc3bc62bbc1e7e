#!/bin/sh
set -e
# The names in slurm.conf: links that are replaced in one step, so that there is always something that can be run.
dir=/usr/libexec/clustermax
for name in clustermax-prolog clustermax-epilog healthcheckprogram; do
    ln -sfn "../../lib/clustermax/bin/$name" "$dir/.$name.new"
    mv -fT "$dir/.$name.new" "$dir/$name"
done
# The state is root's alone, whatever made the folder; /run's part is there before the next boot.
install -d -m 700 /var/lib/clustermax
install -d -m 755 /run/clustermax
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    # Only where it runs: the new version takes over what the old one watched.
    systemctl try-restart clustermax-watch.service || true
fi
exit 0
