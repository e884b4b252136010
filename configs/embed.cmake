# SPDX-License-Identifier: MIT
# Writes OUT, a C file with the bytes of JSON files, in the order of their names: KIND_sources, of struct KIND_source in
# HEADER, and how many they are, KIND_n_sources.
#   cmake -DOUT=FILE -DKIND=bl_synth -DHEADER=synth.h "-DFILES=a.json;b.json" -P embed.cmake
list(SORT FILES)
set(arrays "")
set(rows "")
set(n 0)
foreach(file IN LISTS FILES)
    get_filename_component(name ${file} NAME_WLE)
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "(................................................................)" "\\1\n    " hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    string(APPEND arrays "static const unsigned char file_${n}[] = {\n    ${hex}};\n")
    string(APPEND rows "    {\"${name}\", file_${n}, sizeof file_${n}},\n")
    math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "#include \"${HEADER}\"\n\n${arrays}
const struct ${KIND}_source ${KIND}_sources[] = {
${rows}    {NULL, NULL, 0},
};
const uint32_t ${KIND}_n_sources = ${n};
")
