#!/bin/sh
# SPDX-License-Identifier: MIT
# Holds the arrows of the layer picture: greps every #include against what its folder may include.
#   check_layers.sh [ROOT]     exit 1 and one line per forbidden include
set -eu
cd "${1:-.}"
bad=0
complain() {
    echo "$1: includes \"$2\", but $3"
    bad=1
}
# Includes with quotes, as "file header"; system headers do not count.
includes() {
    find "$@" \( -name '*.[ch]' -o -name '*.def' \) -print 2>/dev/null | sort | while read -r f; do
        sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\(.*\)".*/\1/p' "$f" | while read -r h; do
            echo "$f $h"
        done
    done
}
in_core() { [ -f "core/$1" ] || [ -f "core/families/$1" ]; }

while read -r f h; do
    b=${h##*/}
    case $f in
    shaders/*)
        [ -f "shaders/$h" ] || complain "$f" "$h" "shaders include nothing outside shaders" ;;
    core/*)
        in_core "$b" || [ "$b" = args.h ] || [ "$b" = version.h ] ||
            complain "$f" "$h" "core is below placement, backends and tools" ;;
    backends/*)
        in_core "$b" || [ -f "shaders/$b" ] || [ -f "shaders/$h" ] || [ -f "${f%/*}/$h" ] || [ -f "backends/$h" ] ||
            find "${f%/*}/.." -maxdepth 1 -name "$b" | grep -q . ||
            complain "$f" "$h" "backends use core, headers of shaders and their own folder"
        case $b in
        model.h | plan.h | program.h | engine.h | session.h | sched.h | vocab.h | gguf.h | planner.h)
            complain "$f" "$h" "backends know graphs and devices only" ;;
        esac ;;
    placement/*)
        in_core "$b" || [ -f "placement/$b" ] || [ "$b" = backends.h ] || [ "$b" = args.h ] ||
            complain "$f" "$h" "placement uses core and backends/backends.h" ;;
    tools/*)
        [ "$b" = ballast.h ] || [ -f "tools/$h" ] || [ -f "tools/common/$b" ] ||
            complain "$f" "$h" "programs use the public API, core/ballast.h, only" ;;
    esac
done <<EOF
$(includes shaders core backends placement tools)
EOF
# Inside core, the data layer does not look up at the run layer.
while read -r f h; do
    case $f in
    core/dtype* | core/gguf* | core/graph* | core/vocab* | core/tok_* | core/model* | core/families*)
        case $h in
        plan.h | program.h | sched.h | engine.h | session.h | device.h)
            complain "$f" "$h" "data is below run" ;;
        esac ;;
    core/status* | core/log* | core/mem* | core/ledger* | core/file* | core/thread* | core/topology*)
        case $h in
        status.h | log.h | mem.h | ledger.h | file.h | thread.h | topology.h | topology_layout.h | cgroup.h | compiler.h | ballast.h | version.h) ;;
        *) complain "$f" "$h" "base includes base only" ;;
        esac ;;
    esac
done <<EOF
$(includes core)
EOF
[ "$bad" = 0 ] && echo "layers hold"
exit "$bad"
