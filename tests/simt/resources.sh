#!/bin/sh
# SPDX-License-Identifier: MIT
# What every kernel takes on real hardware, by the compilers' own reports; none may keep registers in memory.
#   resources.sh ROOT REPORT [ARCH...]     default: sm_86 sm_120 gfx1100 gfx90a; REPORT: a line for each kernel
# Exit 1 and a line for each kernel that spills; 77 where neither nvcc nor clang-19 is there.
set -eu
root=$1
report=$2
shift 2
[ $# -gt 0 ] || set -- sm_86 sm_120 gfx1100 gfx90a
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
clang=$(command -v clang-19 || true)
elf=$(command -v llvm-readelf-19 || ls /usr/lib/llvm-19/bin/llvm-readelf 2>/dev/null || true)
units=$(sed -n 's/^KERNEL(\([a-z0-9_]*\),.*/\1/p' "$root/shaders/simt/kernels.def" | sort -u)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
: >"$report"

nvidia() {
    "$nvcc" -cubin -arch="$1" -O3 -std=c++17 -I "$root/shaders" -I "$root" -Xptxas -v "$root/shaders/simt/$2.cu" \
        -o "$scratch/x" 2>&1 | awk -v arch="$1" '
        /Compiling entry/ { split($0, part, "\047"); name = part[2] }
        /spill stores/ { spill = $5 + $9 }
        /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") used = $(i + 1)
                                  print arch, name, "registers", used, "spill", spill }
        /error/ { print > "/dev/stderr"; bad = 1 } END { exit bad }'
}
amd() {
    "$clang" -x hip --cuda-device-only --no-gpu-bundle-output --offload-arch="$1" -nogpuinc -nogpulib -O3 -std=c++17 \
        -I "$root/shaders" -I "$root" "$root/shaders/simt/$2.cu" -o "$scratch/x"
    "$elf" --notes "$scratch/x" | awk -v arch="$1" '
        $1 == ".name:" && $2 !~ /^(p|_)/ { name = $2 }
        $1 == ".private_segment_fixed_size:" { memory = $2 }
        $1 == ".vgpr_count:" { used = $2 }
        $1 == ".vgpr_spill_count:" { print arch, name, "registers", used, "spill", $2 + memory }'
}

ran=0
for arch; do
    case $arch in
    sm_*) [ -n "$nvcc" ] || { echo "skipped: $arch: no nvcc"; continue; } ;;
    *) [ -n "$clang" ] && [ -n "$elf" ] || { echo "skipped: $arch: no clang-19 or llvm-readelf-19"; continue; } ;;
    esac
    ran=1
    for unit in $units; do
        case $arch in sm_*) nvidia "$arch" "$unit" ;; *) amd "$arch" "$unit" ;; esac >>"$report"
    done
done
[ "$ran" = 1 ] || exit 77
awk '$NF > 0 { print; bad = 1 } END { print NR " kernels"; exit bad }' "$report"
