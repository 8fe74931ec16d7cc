# Libraries with CUDA code: sl_cuda_library(name sources…).
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# sm_90a has the instructions the hot kernels use; the plain paths also compile for Ampere and Blackwell.
set(SL_CUDA_ARCHS "90a" CACHE STRING "GPU architectures to build for, e.g. 80;90a;100")
# Without a GPU these files are compiled to see that they compile, without optimisation. Not so the files whose kernels hand
# registers over between warps: ptxas needs them inlined.
option(SL_CUDA_COMPILE_ONLY "Compile the kernels without optimisation: the programs are not to be run" OFF)
set(SL_CUDA_ALWAYS_OPTIMISED "/(attn_mla|attn_ring|gqa_prompt_[0-9]+|linear_few|linear_many|moe_grouped|moe_half)[.]cu$")

# Of the kernels that are one source for three head dimensions the largest and the smallest are then only checked: templates are
# instantiated, and no code is made of them. The one of 128 is compiled, and a GPU's build compiles all.
set(SL_CUDA_ONLY_CHECKED "/gqa_prompt_(64|256)[.]cu$")

# Small files of one folder are then compiled eight at once: most of their time goes into the headers that all of them include. Not
# the files whose kernels or types have the names of a neighbour's.
set(SL_CUDA_ALONE "/(ep_sum|ngram|pooled|code_scores|codes_step|kmeans_small|points|retained_scores|row_softmax)[.]cu$")
set(SL_CUDA_JOINED 8)

# Replaces, in the list `out`, the files that can be compiled together by generated files that include them one after another; the
# macros of a file end with it.
function(sl_cuda_join out)
  set(rest ${${out}})
  set(small ${rest})
  list(FILTER small INCLUDE REGEX "[.]cu$")
  list(FILTER small EXCLUDE REGEX "${SL_CUDA_ALWAYS_OPTIMISED}|${SL_CUDA_ALONE}|${SL_CUDA_ONLY_CHECKED}")
  list(REMOVE_ITEM rest ${small})
  list(SORT small)
  set(n 0)
  while(small)
    list(GET small 0 file)
    get_filename_component(folder ${file} DIRECTORY)
    set(group ${small})
    list(FILTER group INCLUDE REGEX "^${folder}/[^/]*$")
    list(SUBLIST group 0 ${SL_CUDA_JOINED} group)
    list(REMOVE_ITEM small ${group})
    set(text "")
    foreach(file IN LISTS group)
      string(APPEND text "#include \"${file}\"\n")
      file(STRINGS ${file} macros REGEX "^#define [A-Za-z]")
      foreach(macro IN LISTS macros)
        string(REGEX REPLACE "^#define ([A-Za-z0-9_]+).*$" "#undef \\1\n" macro "${macro}")
        string(APPEND text "${macro}")
      endforeach()
    endforeach()
    math(EXPR n "${n} + 1")
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/joined_${n}.cu CONTENT "${text}" @ONLY)
    list(APPEND rest ${CMAKE_CURRENT_BINARY_DIR}/joined_${n}.cu)
  endwhile()
  set(${out} ${rest} PARENT_SCOPE)
endfunction()

function(sl_cuda_library name)
  set(sources ${ARGN})
  list(TRANSFORM sources PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" REGEX "^[^/]")
  if(SL_CUDA_COMPILE_ONLY)
    sl_cuda_join(sources)
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PUBLIC SL_CUDA PRIVATE _GNU_SOURCE)
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Werror -Wshadow -Wmissing-prototypes>
    $<$<COMPILE_LANGUAGE:CUDA>:--std=c++17 -lineinfo --expt-relaxed-constexpr -Xcompiler=-Wall>)
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES OFF CUDA_SEPARABLE_COMPILATION OFF)
  foreach(arch IN LISTS SL_CUDA_ARCHS)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_${arch},code=sm_${arch}>)
  endforeach()
  if(SL_CUDA_COMPILE_ONLY)
    set(unoptimised ${sources})
    list(FILTER unoptimised INCLUDE REGEX "[.]cu$")
    list(FILTER unoptimised EXCLUDE REGEX "${SL_CUDA_ALWAYS_OPTIMISED}")
    set_source_files_properties(${unoptimised} PROPERTIES COMPILE_OPTIONS "-Xcompiler=-O0;-Xcicc=-O0;-Xptxas=-O0")
    set(checked ${sources})
    list(FILTER checked INCLUDE REGEX "${SL_CUDA_ONLY_CHECKED}")
    set_source_files_properties(${checked} PROPERTIES COMPILE_OPTIONS "-Xcompiler=-O0;-fdevice-syntax-only")
  endif()
endfunction()
