# Helpers shared by every room: sl_room(name SOURCES … DEPS … LIBS …) and sl_test(name SOURCES … DEPS …).
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

add_library(sl_flags INTERFACE)
target_include_directories(sl_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
target_compile_options(sl_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
  -Wpointer-arith -Wwrite-strings -fno-common -fno-strict-aliasing>)
target_compile_definitions(sl_flags INTERFACE _GNU_SOURCE)
target_link_libraries(sl_flags INTERFACE Threads::Threads m)
# What is instrumented: everything, but for rooms with SL_PLAIN set.
set(instrumented "$<AND:$<COMPILE_LANGUAGE:C>,$<NOT:$<BOOL:$<TARGET_PROPERTY:SL_PLAIN>>>>")
if(SL_SANITIZE)
  target_compile_options(sl_flags INTERFACE "$<${instrumented}:-fsanitize=${SL_SANITIZE};-fno-omit-frame-pointer>")
  target_link_options(sl_flags INTERFACE -fsanitize=${SL_SANITIZE})
endif()
# The many test programs are linked in half of the time that the default linker takes; in an unsanitized build it links what is shipped.
include(CheckLinkerFlag)
check_linker_flag(C -fuse-ld=gold SL_HAVE_GOLD)
if(SL_HAVE_GOLD AND SL_SANITIZE)
  target_link_options(sl_flags INTERFACE -fuse-ld=gold)
endif()
if(SL_FUZZ)
  target_compile_options(sl_flags INTERFACE "$<${instrumented}:-fsanitize=fuzzer-no-link>")
endif()
# Rooms without a fuzzed parser: in a build of the fuzzers they are compiled as they are, in a quarter of the time.
set(SL_NOT_FUZZED sl_kernels sl_collectives sl_worker sl_prefill sl_decode)

# Under sanitizers rooms that only arrange work are compiled in 40 % of the time without optimisation, and nothing is optimised away
# before it is looked at. Not these, which compute: tests would need more time than the compiler saves.
set(SL_COMPUTING_ROOMS sl_base sl_kernels sl_collectives sl_model sl_sparse sl_engine)

# A room is one static library. DEPS are other rooms (sl_base…), LIBS are pkg-config modules.
function(sl_room name)
  cmake_parse_arguments(R "" "" "SOURCES;DEPS;LIBS;LINK" ${ARGN})
  add_library(${name} STATIC ${R_SOURCES})
  target_link_libraries(${name} PUBLIC sl_flags ${R_DEPS} ${R_LINK})
  if(SL_FUZZ AND name IN_LIST SL_NOT_FUZZED)
    set_target_properties(${name} PROPERTIES SL_PLAIN ON)
    target_compile_options(${name} PRIVATE -O0)
  elseif(SL_SANITIZE AND NOT SL_FUZZ AND NOT name IN_LIST SL_COMPUTING_ROOMS)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  foreach(lib ${R_LIBS})
    if(NOT TARGET PkgConfig::${lib})
      pkg_check_modules(${lib} REQUIRED IMPORTED_TARGET GLOBAL ${lib})
    endif()
    target_link_libraries(${name} PUBLIC PkgConfig::${lib})
  endforeach()
endfunction()

# The long tests, longest first: ctest starts them first, so that none runs alone at the end.
set(SL_LONG_TESTS test_writer_dies test_strategies test_engine test_conformance test_endings test_remote_memory test_faults test_soak test_tokenizer test_golden test_sparse_conformance
    test_engine_discrete test_models test_kernels_residency test_forward test_sampler)
# Tests that mostly wait (for deadlines, deaths, other processes). tests/run gives ctest two places for each processor; these take
# one, a test that computes takes two.
set(SL_WAITING_TESTS test_writer_dies test_conformance test_remote_memory test_endings test_faults test_faults_direct test_soak test_cluster test_cluster_direct test_models
    test_door test_door_secret test_launch test_cli test_bench test_router_request test_router_messages test_router_group test_router_output
    test_router_members test_router_policy test_loopback test_worker_group test_transport test_mailbox test_metrics_http test_log test_disk test_disk_open test_tier test_redis test_redis_stops test_nixl)

# Tests that ThreadSanitizer does not run are not built for it.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/not-under-tsan.txt)
file(STRINGS ${CMAKE_SOURCE_DIR}/tests/not-under-tsan.txt SL_NOT_UNDER_TSAN REGEX "^[a-z]")
string(REPLACE " " ";" SL_NOT_UNDER_TSAN "${SL_NOT_UNDER_TSAN}")

# Test code is compiled in less than half of the time without optimisation. Not where it computes what is expected or measures.
function(sl_test_options name)
  get_filename_component(room ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(NOT room MATCHES "^(kernels|engine|sparse|model|local|eval|fuzz|bench)$")
    target_compile_options(${name} PRIVATE -O0)
  endif()
endfunction()

# What several test programs share, compiled once; built only where one of them is.
function(sl_test_rig name)
  cmake_parse_arguments(T "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${T_SOURCES})
  target_link_libraries(${name} PUBLIC ${T_DEPS} PkgConfig::check)
  sl_test_options(${name})
endfunction()

# A unit test program (libcheck); its exit code 77 means "skipped, reason printed". The limit is for what hangs.
function(sl_test name)
  cmake_parse_arguments(T "" "" "SOURCES;DEPS;LIBS;ARGS" ${ARGN})
  if(NOT TARGET PkgConfig::check)
    pkg_check_modules(check REQUIRED IMPORTED_TARGET GLOBAL check)
  endif()
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_DEPS} PkgConfig::check)
  sl_test_options(${name})
  if(SL_HAVE_GOLD)
    target_link_options(${name} PRIVATE -fuse-ld=gold)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  if(SL_SANITIZE STREQUAL "thread" AND name IN_LIST SL_NOT_UNDER_TSAN)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1500)
  if(NOT name IN_LIST SL_WAITING_TESTS)
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
  list(FIND SL_LONG_TESTS ${name} place)
  if(NOT place EQUAL -1)
    math(EXPR cost "1000 - ${place}")
    set_tests_properties(${name} PROPERTIES COST ${cost})
  endif()
endfunction()

# A libFuzzer program over one parser; built only with SL_FUZZ (clang). Without sanitizers the same source is a part of
# test_parser_cost (sl_parser_cost), unless NO_COST says why it is not.
function(sl_fuzzer name)
  cmake_parse_arguments(F "" "NO_COST" "SOURCES;DEPS" ${ARGN})
  string(REGEX REPLACE "^fuzz_" "" parser ${name})
  if(NOT SL_FUZZ)
    list(GET F_SOURCES 0 entry)
    set_source_files_properties(${entry} PROPERTIES COMPILE_DEFINITIONS "LLVMFuzzerTestOneInput=fuzz_${parser}")
    if(F_NO_COST)
      set_property(GLOBAL APPEND_STRING PROPERTY SL_PARSERS "NOT_MEASURED(${parser}, \"${F_NO_COST}\")\n")
    else()
      set_property(GLOBAL APPEND_STRING PROPERTY SL_PARSERS "MEASURED(${parser})\n")
      set_property(GLOBAL APPEND PROPERTY SL_PARSER_SOURCES ${F_SOURCES})
      set_property(GLOBAL APPEND PROPERTY SL_PARSER_DEPS ${F_DEPS})
    endif()
    return()
  endif()
  add_executable(${name} ${F_SOURCES})
  target_link_libraries(${name} PRIVATE ${F_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${name})
endfunction()

# The test of what every parser with a fuzzer costs, from what sl_fuzzer() has collected.
function(sl_parser_cost)
  if(SL_FUZZ OR SL_SANITIZE)
    return()
  endif()
  get_property(parsers GLOBAL PROPERTY SL_PARSERS)
  get_property(sources GLOBAL PROPERTY SL_PARSER_SOURCES)
  get_property(deps GLOBAL PROPERTY SL_PARSER_DEPS)
  list(REMOVE_DUPLICATES deps)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/parsers.inc CONTENT "${parsers}" @ONLY)
  sl_test(test_parser_cost SOURCES test_parser_cost.c ${sources} DEPS ${deps})
  target_include_directories(test_parser_cost PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
