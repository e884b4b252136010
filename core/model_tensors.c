/* SPDX-License-Identifier: MIT */
typedef int bl_not_written_yet;
