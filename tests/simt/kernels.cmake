# SPDX-License-Identifier: MIT
# Kernels of shaders/simt for this CPU, with warps of 32 and of 64, and every op of theirs against the float reference.
function(bl_host_kernels warp)
    set(units ${CMAKE_CURRENT_LIST_DIR}/peak.cu)
    bl_simt_units(names)
    foreach(unit IN LISTS names)
        list(APPEND units ${CMAKE_SOURCE_DIR}/shaders/simt/${unit}.cu)
    endforeach()
    # as C++ whatever the name says; one build per kind of warp
    set_source_files_properties(${units} PROPERTIES LANGUAGE CXX)
    add_library(simt_host${warp} OBJECT ${units} ${CMAKE_CURRENT_LIST_DIR}/host/run.cpp)
    set_target_properties(simt_host${warp} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_compile_features(simt_host${warp} PRIVATE cxx_std_17)
    target_compile_definitions(simt_host${warp} PRIVATE BL_SIMT_HOST BL_WARP=${warp})
    # -O1: what costs time is the switch from fibre to fibre
    target_compile_options(simt_host${warp} PRIVATE -x c++ -O1 -Wall -Wextra -ffp-contract=off)
    target_include_directories(simt_host${warp} PRIVATE ${CMAKE_SOURCE_DIR}/shaders ${CMAKE_SOURCE_DIR}
                               ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/host)
    if(BL_WERROR)
        target_compile_options(simt_host${warp} PRIVATE -Werror)
    endif()
    if(BL_SANITIZE)
        target_compile_options(simt_host${warp} PRIVATE -fsanitize=${BL_SANITIZE} -fno-omit-frame-pointer
                               -fno-sanitize-recover=all)
    endif()
endfunction()
bl_host_kernels(32)
bl_host_kernels(64)

set(TESTS ${CMAKE_SOURCE_DIR}/tests)
list(TRANSFORM OPS_CASES PREPEND ${TESTS}/ OUTPUT_VARIABLE cases)
add_executable(test_simt_ops ${CMAKE_CURRENT_LIST_DIR}/test_simt_ops.c ${cases})
bl_quote(test_simt_ops PRIVATE ${CMAKE_CURRENT_LIST_DIR} ${TESTS} ${CMAKE_SOURCE_DIR}/backends ${CMAKE_SOURCE_DIR}/placement
         ${CMAKE_SOURCE_DIR}/shaders ${CMAKE_BINARY_DIR})
target_link_libraries(test_simt_ops PRIVATE ballast PkgConfig::CMOCKA PkgConfig::PCRE2 PkgConfig::HWLOC PkgConfig::CJSON
                      Threads::Threads ${CMAKE_DL_LIBS} m)
target_compile_definitions(test_simt_ops PRIVATE BL_TEST_IMAGES="${CMAKE_CURRENT_BINARY_DIR}/images")
# Tier 1 looks at warps of either width; the rest is for a full run.
function(bl_simt_ops name tier library)
    add_test(NAME simt.ops.${name} COMMAND test_simt_ops $<TARGET_FILE:emu_${library}> ${ARGN})
    set_tests_properties(simt.ops.${name} PROPERTIES TIMEOUT 600 LABELS ${tier} SKIP_RETURN_CODE 77)
endfunction()
if(BL_SANITIZE MATCHES "thread") # every barrier
    bl_simt_ops(some_cuda tier1 cuda --every 97)
    bl_simt_ops(some_native tier1 cuda --native --every 97)
elseif(BL_SANITIZE) # and most types and shapes
    bl_simt_ops(some_cuda tier1 cuda --every 7)
    bl_simt_ops(some_native tier1 cuda --native --every 7)
    bl_simt_ops(some_hip64 tier1 hip64 --every 13)
endif()
bl_simt_ops(cuda tier1 cuda)
bl_simt_ops(hip64 tier1 hip64)
bl_simt_ops(cuda_native tier1 cuda --native)
bl_simt_ops(hip64_native tier2 hip64 --native)
bl_simt_ops(cuda_all tier2 cuda --all)

# The runtime itself: whoever breaks the rules of a barrier or of a meeting is named.
add_executable(test_host_run ${CMAKE_CURRENT_LIST_DIR}/test_host_run.cpp ${CMAKE_CURRENT_LIST_DIR}/host/run.cpp)
target_compile_features(test_host_run PRIVATE cxx_std_17)
target_compile_definitions(test_host_run PRIVATE BL_SIMT_HOST BL_WARP=32)
target_compile_options(test_host_run PRIVATE -O1 -Wall -Wextra)
target_include_directories(test_host_run PRIVATE ${CMAKE_SOURCE_DIR}/shaders ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_LIST_DIR}
                           ${CMAKE_CURRENT_LIST_DIR}/host)
target_link_libraries(test_host_run PRIVATE Threads::Threads)
if(BL_SANITIZE)
    target_compile_options(test_host_run PRIVATE -fsanitize=${BL_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(test_host_run PRIVATE -fsanitize=${BL_SANITIZE})
endif()
add_test(NAME simt.host_run COMMAND test_host_run)
set_tests_properties(simt.host_run PROPERTIES TIMEOUT 120 LABELS tier1)

# Kernels on real hardware: that they compile, and which registers they take; reports stay as artefacts. Four targets in
# four tests, so that every slice has one; with --full all.
function(bl_simt_resources name tier)
    add_test(NAME simt.resources.${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/resources.sh ${CMAKE_SOURCE_DIR}
             ${CMAKE_CURRENT_BINARY_DIR}/resources-${name}.txt ${ARGN})
    set_tests_properties(simt.resources.${name} PROPERTIES TIMEOUT 1800 LABELS ${tier} SKIP_RETURN_CODE 77 PROCESSORS 2)
endfunction()
set(sliced sm_86 gfx1100 sm_120 gfx90a)
foreach(arch IN LISTS sliced)
    bl_simt_resources(${arch} tier2 ${arch})
endforeach()
set(others ${SIMT_CUDA_ALL})
list(TRANSFORM others PREPEND sm_)
list(APPEND others ${SIMT_HIP_ALL})
list(REMOVE_ITEM others ${sliced})
bl_simt_resources(others tier3 ${others})
