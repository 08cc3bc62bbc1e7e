#!/bin/bash
# A Slurm cluster with accounting: munged, MariaDB, slurmdbd, slurmctld and slurmds, each with sockets, ports and files of its own.
#
#   cluster.sh up DIR NODES    starts it and waits until every node is idle; DIR must be short and empty
#   cluster.sh down DIR        ends what `up` started, by the pids it recorded
#
# After `up`, SLURM_CONF=DIR/slurm.conf makes Slurm's commands talk to it. Needs root and Debian's slurm-wlm, slurmdbd,
# slurm-wlm-mysql-plugin, mariadb-server and munge.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

say() { echo "cluster.sh: $*" >&2; }
free_ports() {
  /usr/bin/python3 - "$1" <<'PY'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in held:
    one.bind(("127.0.0.1", 0))
print(*[one.getsockname()[1] for one in held])
PY
}
# start NAME COMMAND...: in the background, its pid kept. In a session of its own, so that no signal of the terminal reaches it.
start() {
  local name=$1
  shift
  setsid "$@" > "$dir/$name.log" 2>&1 < /dev/null &
  echo "$!" > "$dir/$name.pid"
}
# until SECONDS WHAT COMMAND...
wait_for() {
  local most=$1 what=$2 end
  shift 2
  end=$((SECONDS + most))
  until "$@" > /dev/null 2>&1; do
    if ((SECONDS >= end)); then
      say "$what did not answer within $most s; its log is in $dir"
      tail -n 5 "$dir"/*.log >&2
      exit 3
    fi
    sleep 0.2
  done
}

up() {
  local nodes=$1 host user ports secret program n
  for program in munged mariadbd mariadb-install-db slurmdbd slurmctld slurmd sacctmgr; do
    command -v "$program" > /dev/null || { say "$program is not installed"; exit 3; }
  done
  mkdir -p "$dir"
  chmod 755 "$dir"
  host=$(hostname -s)
  user=$(id -un)
  read -r -a ports <<< "$(free_ports $((nodes + 3)))"
  head -c 128 /dev/urandom > "$dir/munge.key"
  chmod 600 "$dir/munge.key"
  start munged munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.sock" \
    --log-file="$dir/munged.out" --pid-file="$dir/munged.own" --seed-file="$dir/munged.seed"
  wait_for 10 munged test -S "$dir/munge.sock"

  mkdir "$dir/db" "$dir/dbtmp"
  mariadb-install-db --no-defaults --user="$user" --datadir="$dir/db" --auth-root-authentication-method=socket \
    --skip-test-db > "$dir/install-db.log" 2>&1
  start mariadbd mariadbd --no-defaults --user="$user" --datadir="$dir/db" --socket="$dir/db.sock" --pid-file="$dir/db.own" \
    --tmpdir="$dir/dbtmp" --bind-address=127.0.0.1 --port="${ports[2]}" --skip-name-resolve --innodb-buffer-pool-size=64M --innodb-log-file-size=16M --innodb-lock-wait-timeout=900
  wait_for 30 MariaDB mariadb --no-defaults --socket="$dir/db.sock" -e "select 1"
  # slurmdbd can be told a port, not a socket.
  secret=$(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n')
  mariadb --no-defaults --socket="$dir/db.sock" \
    -e "create user slurm@127.0.0.1 identified by '$secret'; grant all on slurm_acct.* to slurm@127.0.0.1"

  cat > "$dir/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$dir/munge.sock
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=${ports[0]}
SlurmUser=$user
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=${ports[2]}
StorageLoc=slurm_acct
StorageUser=slurm
StoragePass=$secret
LogFile=$dir/slurmdbd.out
PidFile=$dir/slurmdbd.own
CONF
  chmod 600 "$dir/slurmdbd.conf"
  cat > "$dir/slurm.conf" <<CONF
ClusterName=acct
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[1]}
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge.sock,cred_expire=5
StateSaveLocation=$dir/state
SlurmctldPidFile=$dir/slurmctld.own
SlurmctldLogFile=$dir/slurmctld.out
SlurmdSpoolDir=$dir/spool-%n
SlurmdPidFile=$dir/slurmd-%n.own
SlurmdLogFile=$dir/slurmd-%n.out
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=1
JobRequeue=1
SchedulerParameters=bf_interval=2,sched_interval=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=${ports[0]}
AccountingStoragePass=$dir/munge.sock
JobAcctGatherType=jobacct_gather/none
CONF
  echo "CgroupAutomount=no" > "$dir/cgroup.conf"
  for ((n = 1; n <= nodes; n++)); do
    echo "NodeName=n$n NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[n + 2]} CPUs=8 RealMemory=1000" >> "$dir/slurm.conf"
    mkdir "$dir/spool-n$n"
  done
  echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >> "$dir/slurm.conf"
  mkdir "$dir/state"
  export SLURM_CONF=$dir/slurm.conf
  start slurmdbd env SLURM_CONF="$dir/slurm.conf" slurmdbd -D
  wait_for 60 slurmdbd sacctmgr -n show cluster
  sacctmgr -i add cluster acct > /dev/null
  start slurmctld slurmctld -D
  wait_for 30 slurmctld scontrol ping
  for ((n = 1; n <= nodes; n++)); do start "slurmd-n$n" slurmd -D -N "n$n"; done
  wait_for 60 "every node" bash -c "[ \$(sinfo -hN -t idle | wc -l) -eq $nodes ]"
}

down() {
  local name pid end
  for name in "$dir"/slurmd-*.pid "$dir"/slurmctld.pid "$dir"/slurmdbd.pid "$dir"/mariadbd.pid "$dir"/munged.pid; do
    [ -f "$name" ] || continue
    pid=$(< "$name")
    kill -TERM "$pid" 2> /dev/null || true
    end=$((SECONDS + 10))
    while kill -0 "$pid" 2> /dev/null && ((SECONDS < end)); do sleep 0.1; done
    kill -KILL "$pid" 2> /dev/null || true
    rm -f "$name"
  done
}

[ $# -ge 2 ] || { say "usage: cluster.sh up DIR NODES | down DIR"; exit 2; }
dir=$2
case $1 in
  up) up "${3:-3}" ;;
  down) down ;;
  *) say "usage: cluster.sh up DIR NODES | down DIR"; exit 2 ;;
esac
