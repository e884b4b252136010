# SPDX-License-Identifier: MIT
# Writes OUT, a C file with the bytes of the JSON files SHAPES, in the order of their names.
#   cmake -DOUT=FILE "-DSHAPES=a.json;b.json" -P embed.cmake
list(SORT SHAPES)
set(arrays "")
set(rows "")
set(n 0)
foreach(shape IN LISTS SHAPES)
    get_filename_component(name ${shape} NAME_WLE)
    file(READ ${shape} hex HEX)
    string(REGEX REPLACE "(................................................................)" "\\1\n    " hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    string(APPEND arrays "static const unsigned char shape_${n}[] = {\n    ${hex}};\n")
    string(APPEND rows "    {\"${name}\", shape_${n}, sizeof shape_${n}},\n")
    math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "#include \"synth.h\"\n\n${arrays}
const struct bl_synth_source bl_synth_sources[] = {
${rows}    {NULL, NULL, 0},
};
const uint32_t bl_synth_n_sources = ${n};
")
