# Helpers that give every target the same language level, warnings and sanitizers, as an INTERFACE
# target instead of global flags.

add_library(voodoo_options INTERFACE)
target_compile_features(voodoo_options INTERFACE cxx_std_20)
target_compile_options(voodoo_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
# Kernels over weights and logits gain much from the machine's own vector width, as llama.cpp's (GGML_NATIVE).
option(VOODOO_NATIVE "Optimize for the processor of this machine" ON)
if(VOODOO_NATIVE)
    include(CheckCXXCompilerFlag)
    check_cxx_compiler_flag(-march=native VOODOO_HAS_MARCH_NATIVE)
    if(VOODOO_HAS_MARCH_NATIVE)
        target_compile_options(voodoo_options INTERFACE -march=native)
    endif()
endif()
target_include_directories(voodoo_options INTERFACE "${CMAKE_SOURCE_DIR}/src")
if(VOODOO_SANITIZE)
    target_compile_options(voodoo_options INTERFACE -fsanitize=${VOODOO_SANITIZE} -fno-omit-frame-pointer
                                                    -fno-sanitize-recover=all)
    target_link_options(voodoo_options INTERFACE -fsanitize=${VOODOO_SANITIZE})
endif()

# voodoo_library(NAME SOURCES a.cpp ... DEPS target ...): the static library of one layer, voodoo_NAME.
function(voodoo_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
    add_library(voodoo_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(voodoo_${name} PUBLIC voodoo_options ${ARG_DEPS})
endfunction()

# voodoo_test(NAME LABEL unit|gradcheck|property|e2e|golden|meta|fuzz SOURCES ... DEPS ... [TIMEOUT s]):
# a GoogleTest binary whose tests are registered one by one with CTest under the label.
function(voodoo_test name)
    cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 300)
    endif()
    if(VOODOO_SANITIZE)
        math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 6")  # instrumented code is several times slower
    endif()
    add_executable(${name} ${ARG_SOURCES})
    target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/tests")
    target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main)
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
        PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
