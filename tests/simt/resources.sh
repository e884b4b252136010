#!/bin/bash
# SPDX-License-Identifier: MIT
# Compiles every kernel for real hardware. What each takes, by the compilers' own reports, is left as an artefact; none may
# keep what belongs in registers in memory.
#   resources.sh ROOT REPORT ARCH...     sm_86, gfx1100; REPORT: a line for each kernel
#   NVCC=FILE                            this one, not that of PATH or /usr/local/cuda
# Exit 1 and a line for each kernel that does, but for products for many tokens and their attention on gfx906, which has no
# instruction for matrices and computes them with all the registers there are; 77 where the compiler for none of them is there.
set -euo pipefail
root=$1
report=$2
shift 2
nvcc=${NVCC:-$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || true)}
clang=$(command -v clang-19 || true)
elf=$(command -v llvm-readelf-19 || true)
units=$(sed -n 's/^KERNEL(\([a-z0-9_]*\),.*/\1/p' "$root/shaders/simt/kernels.def" | sort -u)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Stack: where arrays are that cannot be registers, and what is spilled.
nvidia() {
    "$nvcc" -cubin "-arch=$1" -O3 -std=c++17 -I "$root/shaders" -I "$root" -Xptxas -v "$root/shaders/simt/$2.cu" \
        -o "$scratch/$1.$2.o" >"$scratch/$1.$2.log" 2>&1 || {
        cat "$scratch/$1.$2.log" >&2
        return 1
    }
    awk -v arch="$1" '
        /Compiling entry/ { split($0, part, "\047"); name = part[2] }
        /bytes stack frame/ { memory = $1 }
        /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") used = $(i + 1)
                                  print arch, name, "registers", used, "memory", memory }' "$scratch/$1.$2.log"
}
amd() {
    "$clang" -x hip --cuda-device-only --no-gpu-bundle-output "--offload-arch=$1" -nogpuinc -nogpulib -O3 -std=c++17 \
        -I "$root/shaders" -I "$root" "$root/shaders/simt/$2.cu" -o "$scratch/$1.$2.o"
    "$elf" --notes "$scratch/$1.$2.o" | awk -v arch="$1" '
        $1 == ".name:" && $2 !~ /^(p|_)/ { name = $2 }
        $1 == ".private_segment_fixed_size:" { memory = $2 }
        $1 == ".vgpr_count:" { used = $2 }
        $1 == ".vgpr_spill_count:" { print arch, name, "registers", used, "memory", memory + 4 * $2 }'
}
compile() {
    case $1 in sm_*) nvidia "$1" "$2" ;; *) amd "$1" "$2" ;; esac >"$scratch/$1.$2.report"
}
export -f nvidia amd compile
export nvcc clang elf root scratch

pairs=""
for arch; do
    case $arch in
    sm_*) have=$nvcc name=nvcc ;;
    *) have=${clang:+$elf} name="clang-19 with llvm-readelf-19" ;;
    esac
    if [ ! -x "$have" ]; then
        echo "skipped: $arch: no $name"
        continue
    fi
    for unit in $units; do pairs+="$arch $unit"$'\n'; done
done
[ -n "$pairs" ] || exit 77
# shellcheck disable=SC2016 # of the inner shell
printf '%s' "$pairs" | xargs -P "$(nproc)" -L 1 bash -c 'compile "$0" "$1" || exit 255'
sort "$scratch"/*.report >"$report"
wanted=$(($(grep -c '^KERNEL(' "$root/shaders/simt/kernels.def") * $(awk '{ print $1 }' <<<"$pairs" | sort -u | grep -c .)))
awk -v wanted="$wanted" '$NF > 0 { print; if ($1 != "gfx906" || $2 !~ /^(matmul|attendh)/ || $NF > 160) bad = 1 }
    END { print NR " kernels"; if (NR != wanted) { print "of " wanted; bad = 1 } exit bad }' "$report"
