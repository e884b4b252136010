#!/bin/sh
# SPDX-License-Identifier: MIT
# Lines of C per folder, so that growth is seen. Shows, never fails.
#   loc.sh [ROOT]
set -eu
cd "${1:-.}"
printf '%-16s %6s %8s %8s   %s\n' folder files lines longest "longest file"
for dir in core core/families placement backends backends/cpu backends/cpu/x86 shaders tools tests; do
    [ -d "$dir" ] || continue
    depth="-maxdepth 1"
    case $dir in tools | tests) depth="" ;; esac
    # shellcheck disable=SC2086 # two words or none
    find "$dir" $depth \( -name '*.[ch]' -o -name '*.def' \) -exec wc -l {} \; | awk -v dir="$dir" '
        { n++; sum += $1; if ($1 > max) { max = $1; name = $2 } }
        END { printf "%-16s %6d %8d %8d   %s\n", dir, n, sum, max, name }'
done
