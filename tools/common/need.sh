# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# Sourced by quickstart.sh and test.sh: installs what is missing, and only that.
#   need_packages PACKAGE...     these
#   need COMMAND PACKAGE...      packages, when the command is not found
#   need_lib MODULE PACKAGE      package, when pkg-config does not know the module
#   need_install                 installs what was named so far; exits 1 with one line when it cannot

missing=""

say() { printf '%s\n' "$*" >&2; }

need_packages() {
    for package; do
        case " $missing " in
        *" $package "*) ;;
        *) missing="$missing $package" ;;
        esac
    done
}

need() {
    command -v "$1" >/dev/null 2>&1 || {
        shift
        need_packages "$@"
    }
}

need_lib() {
    pkg-config --exists "$1" 2>/dev/null || need_packages "$2"
}

need_install() {
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        say "missing packages, and no apt-get to install them with; Debian calls them:$missing"
        exit 1
    fi
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            say "missing packages, and neither root nor sudo to install them; as root: apt-get install$missing"
            exit 1
        fi
        as_root=sudo
    fi
    say "installing:$missing"
    log=$(mktemp)
    # shellcheck disable=SC2086 # the list is meant to be split
    if $as_root apt-get update >"$log" 2>&1 </dev/null &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing \
            >>"$log" 2>&1 </dev/null; then
        rm -f "$log"
        missing=""
        return 0
    fi
    tail -n 20 "$log" >&2
    say "apt-get could not install:$missing (whole log: $log)"
    exit 1
}

need_build_packages() {
    need cc build-essential
    need make build-essential
    need cmake cmake
    need pkg-config pkg-config
    need_lib libpcre2-8 libpcre2-dev
    need_lib hwloc libhwloc-dev
    need_lib libcjson libcjson-dev
}
