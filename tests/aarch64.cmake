# SPDX-License-Identifier: MIT
# Toolchain for a 64-bit Arm build on another Debian machine, its programs run by qemu-user:
#   cmake -B build-aarch64 -DCMAKE_TOOLCHAIN_FILE=tests/aarch64.cmake
# The libraries are the arm64 packages of the same Debian, beside the machine's own (multiarch), so neither the
# compiler nor qemu needs a system root; tools/test.sh --full names the packages.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
