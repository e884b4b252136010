# SPDX-License-Identifier: MIT
# The emulated driver, as the libraries that backends look for, and what is tested with it.
function(bl_emulated name face kernels)
    set(sources emu emu_streams emu_kernels emu_${face})
    list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
    list(TRANSFORM sources APPEND .cpp)
    add_library(emu_${name} SHARED ${sources} $<TARGET_OBJECTS:${kernels}>)
    target_compile_features(emu_${name} PRIVATE cxx_std_17)
    target_compile_options(emu_${name} PRIVATE -Wall -Wextra -fvisibility=hidden)
    target_include_directories(emu_${name} PRIVATE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_SOURCE_DIR}/backends
                               ${CMAKE_SOURCE_DIR}/shaders)
    target_compile_definitions(emu_${name} PRIVATE ${ARGN})
    if(BL_WERROR)
        target_compile_options(emu_${name} PRIVATE -Werror)
    endif()
    if(BL_SANITIZE)
        target_compile_options(emu_${name} PRIVATE -fsanitize=${BL_SANITIZE} -fno-omit-frame-pointer
                               -fno-sanitize-recover=all)
        target_link_options(emu_${name} PRIVATE -fsanitize=${BL_SANITIZE})
    endif()
    target_link_libraries(emu_${name} PRIVATE Threads::Threads)
endfunction()

bl_emulated(cuda cuda simt_host32)
bl_emulated(old_cuda cuda simt_host32 EMU_OLD)
bl_emulated(hip hip simt_host32)
bl_emulated(hip64 hip simt_host64)

# Images that it takes: their names are all there is to them.
set(SIMT_IMAGES ${CMAKE_CURRENT_BINARY_DIR}/images)
bl_simt_units(units)
foreach(unit IN LISTS units ITEMS peak)
    foreach(suffix fatbin gfx1100.co gfx90a.co)
        file(CONFIGURE OUTPUT ${SIMT_IMAGES}/${unit}.${suffix} CONTENT "EMULATED ${unit}\n")
    endforeach()
endforeach()

# bl_emulated_test(name LIBRARY... ): NAME.c once with each library.
function(bl_emulated_test name)
    add_executable(test_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c)
    bl_quote(test_${name} PRIVATE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/backends
             ${CMAKE_SOURCE_DIR}/placement ${CMAKE_SOURCE_DIR}/shaders ${CMAKE_BINARY_DIR})
    target_link_libraries(test_${name} PRIVATE ballast PkgConfig::CMOCKA PkgConfig::PCRE2 PkgConfig::HWLOC
                          PkgConfig::CJSON Threads::Threads ${CMAKE_DL_LIBS} m)
    target_compile_definitions(test_${name} PRIVATE BL_TEST_IMAGES="${SIMT_IMAGES}"
                               BL_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
    bl_keep_loaded(test_${name})
    foreach(library IN LISTS ARGN)
        add_test(NAME simt.${name}.${library} COMMAND test_${name} $<TARGET_FILE:emu_${library}>)
        set_tests_properties(simt.${name}.${library} PROPERTIES TIMEOUT 300 LABELS tier1 SKIP_RETURN_CODE 77)
    endforeach()
endfunction()
bl_emulated_test(simt_host cuda old_cuda hip hip64)
bl_emulated_test(simt_order cuda old_cuda hip hip64)
bl_emulated_test(simt_fuse cuda hip64)
bl_emulated_test(simt_models cuda hip64)
bl_emulated_test(simt_experts cuda hip64)
bl_emulated_test(simt_direct cuda hip64)
bl_emulated_test(simt_mixed)
add_test(NAME simt.mixed COMMAND test_simt_mixed $<TARGET_FILE:emu_cuda> $<TARGET_FILE:emu_hip64>)
add_test(NAME simt.experts.every_call COMMAND test_simt_experts $<TARGET_FILE:emu_cuda> --every)
set_tests_properties(simt.mixed PROPERTIES TIMEOUT 300 LABELS tier1 SKIP_RETURN_CODE 77)
set_tests_properties(simt.experts.every_call PROPERTIES TIMEOUT 600 LABELS tier2 SKIP_RETURN_CODE 77)
# With sanitizers a selection of what is on one card, on several, fused, replayed, sent, in slots, of both vendors.
function(bl_emulated_some name n)
    add_test(NAME simt.some.${name} COMMAND test_simt_${name} ${ARGN} --one-of ${n})
    set_tests_properties(simt.some.${name} PROPERTIES TIMEOUT 300 LABELS tier1)
endfunction()
if(BL_SANITIZE)
    set(models 6)
    set(others 3)
    if(BL_SANITIZE MATCHES "thread") # 10 times as slow
        set(models 10)
        set(others 8)
    endif()
    bl_emulated_some(models ${models} $<TARGET_FILE:emu_cuda>)
    bl_emulated_some(fuse ${others} $<TARGET_FILE:emu_cuda>)
    bl_emulated_some(experts 3 $<TARGET_FILE:emu_cuda>)
    bl_emulated_some(direct ${others} $<TARGET_FILE:emu_cuda>)
    bl_emulated_some(mixed 4 $<TARGET_FILE:emu_cuda> $<TARGET_FILE:emu_hip64>)
endif()

# Everything that a plan can say at random, cards of both vendors among its devices: one plan of each model, 65 in all.
function(bl_cards_plans name tier)
    add_test(NAME simt.plans.${name} COMMAND reference_check --devices cuda0,cuda1,hip0,hip1 --plans 1 --seed ${ARGN})
    set_tests_properties(simt.plans.${name} PROPERTIES TIMEOUT 1800 LABELS ${tier} SKIP_RETURN_CODE 77 ENVIRONMENT
                         "BALLAST_CUDA_LIBRARY=$<TARGET_FILE:emu_cuda>;BALLAST_CUDA_KERNELS=${SIMT_IMAGES};\
BALLAST_HIP_LIBRARY=$<TARGET_FILE:emu_hip64>;BALLAST_HIP_KERNELS=${SIMT_IMAGES};EMU=cards=2,mib=512,late=50,peers=1")
endfunction()
set(reference ${CMAKE_SOURCE_DIR}/tests/data/reference)
bl_cards_plans(llama tier1 16 ${reference} llama-f32)
bl_cards_plans(qwen3moe tier1 12 ${reference} qwen3moe-iq3)
bl_cards_plans(gpt_oss tier1 54 ${reference} gpt-oss-mxfp4)
bl_cards_plans(full tier2 500 --all)

# Every card that drivers tell of, by one word.
add_test(NAME simt.all_devices COMMAND ballast_cli plan --devices all --format json
         -m ${CMAKE_SOURCE_DIR}/tests/data/reference/models/qwen35moe-f32.gguf)
set_tests_properties(simt.all_devices PROPERTIES TIMEOUT 60 LABELS tier1
                     ENVIRONMENT "BALLAST_CUDA_LIBRARY=$<TARGET_FILE:emu_cuda>;BALLAST_CUDA_KERNELS=${SIMT_IMAGES};EMU=cards=2"
                     PASS_REGULAR_EXPRESSION "\"id\": \"pci-0000:01:00.0\".*\"id\": \"pci-0000:02:00.0\"")
# None that the build has no kernels for: another driver may run it.
if(BALLAST_CUDA_ARCHS STREQUAL "none")
    add_test(NAME simt.all_devices.no_kernels COMMAND ballast_cli info --cpu --devices all)
    set_tests_properties(simt.all_devices.no_kernels PROPERTIES TIMEOUT 60 LABELS tier1
                         ENVIRONMENT "BALLAST_CUDA_LIBRARY=$<TARGET_FILE:emu_cuda>;BALLAST_HIP_LIBRARY=none;\
VK_ICD_FILENAMES=none;VK_DRIVER_FILES=none;EMU=cards=1"
                         PASS_REGULAR_EXPRESSION "devices all: there is no card.*this build has no kernels for sm_86"
                         FAIL_REGULAR_EXPRESSION "pci-0000")
endif()

# What cards do at best, for tools/gpu-check.sh.
add_executable(card_peaks ${CMAKE_CURRENT_LIST_DIR}/card_peaks.c)
bl_quote(card_peaks PRIVATE ${CMAKE_SOURCE_DIR}/backends ${CMAKE_SOURCE_DIR}/shaders ${CMAKE_BINARY_DIR})
target_link_libraries(card_peaks PRIVATE ballast PkgConfig::PCRE2 PkgConfig::HWLOC PkgConfig::CJSON Threads::Threads
                      ${CMAKE_DL_LIBS} m)
# All of that script but a card.
if(Python3_FOUND AND NOT BL_SANITIZE)
    add_test(NAME simt.gpu_check COMMAND ${CMAKE_SOURCE_DIR}/tools/gpu-check.sh --emulated --build ${CMAKE_BINARY_DIR}
             --minutes 9 -o ${CMAKE_CURRENT_BINARY_DIR}/gpu-report.md)
    set_tests_properties(simt.gpu_check PROPERTIES TIMEOUT 600 LABELS tier2)
endif()

# Our prototypes against the vendor's, where its header is installed.
find_path(CUDA_HEADERS cuda.h HINTS /usr/local/cuda/include)
if(CUDA_HEADERS)
    foreach(list CUDA_SYMBOLS CUDA_OPTIONAL)
        add_library(check_${list} OBJECT ${CMAKE_CURRENT_LIST_DIR}/check_symbols.cpp)
        target_compile_features(check_${list} PRIVATE cxx_std_17)
        target_include_directories(check_${list} PRIVATE ${CMAKE_SOURCE_DIR}/backends ${CUDA_HEADERS})
        target_compile_definitions(check_${list} PRIVATE VENDOR_HEADER=<cuda.h> SYMBOLS_HEADER=<cuda/cuda_symbols.h> ALL=${list})
    endforeach()
endif()
