# Sourced by ./quickstart and ./run-tests: installs Debian packages that are missing.
# shellcheck shell=bash

# install_packages PACKAGE...
install_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
            missing+=("$package")
    done
    if ((${#missing[@]} == 0)); then
        return 0
    fi
    if ((EUID != 0)); then
        echo "these packages are missing: ${missing[*]}; run this as root, or install them" >&2
        return 1
    fi
    echo "installing ${missing[*]}"
    # RUNLEVEL=1 keeps the packages from starting Slurm and munge of their own.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    apt-get update -qq &&
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# What a simulated cluster and the build need.
# shellcheck disable=SC2034
CLUSTER_PACKAGES=(gcc libc6-dev libclang-dev libslurm-dev munge slurm-wlm fio python3 python3-torch)
