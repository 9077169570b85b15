# Finds the pinned llama.cpp that `make bootstrap` brought and built, and makes imported targets of it:
#   llama_base  libggml-base (quantizers, tensors, backends' registry)
#   llama_ggml  all of ggml with its CPU backend
#   llama_api   libllama

set(VOODOO_LLAMA_DIR "${CMAKE_SOURCE_DIR}/third_party/llama.cpp" CACHE PATH "llama.cpp source tree (v0.5.0)")
set(VOODOO_LLAMA_BUILD_DIR "${CMAKE_SOURCE_DIR}/third_party/llama-build" CACHE PATH "its build tree")

if(NOT EXISTS "${VOODOO_LLAMA_DIR}/include/llama.h" OR NOT EXISTS "${VOODOO_LLAMA_BUILD_DIR}/bin")
    message(FATAL_ERROR "llama.cpp is not there yet: run `make bootstrap` first "
                        "(VOODOO_LLAMA_DIR=${VOODOO_LLAMA_DIR})")
endif()

function(voodoo_import_llama target file)
    find_library(VOODOO_LIB_${target} NAMES ${file} PATHS "${VOODOO_LLAMA_BUILD_DIR}/bin" NO_DEFAULT_PATH REQUIRED)
    add_library(${target} SHARED IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES
        IMPORTED_LOCATION "${VOODOO_LIB_${target}}"
        INTERFACE_INCLUDE_DIRECTORIES "${VOODOO_LLAMA_DIR}/ggml/include")
endfunction()

voodoo_import_llama(llama_base ggml-base)
voodoo_import_llama(llama_cpu ggml-cpu)
voodoo_import_llama(llama_ggml_all ggml)
voodoo_import_llama(llama_api llama)
target_link_libraries(llama_ggml_all INTERFACE llama_base llama_cpu)
add_library(llama_ggml INTERFACE)
target_link_libraries(llama_ggml INTERFACE llama_ggml_all llama_cpu llama_base)
set_property(TARGET llama_api APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${VOODOO_LLAMA_DIR}/include")
target_link_libraries(llama_api INTERFACE llama_ggml)
