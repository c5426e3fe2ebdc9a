# Flags of every target in this tree: standard, warnings, visibility, sanitizers. They are set for this folder and those below, so
# a project that contains libddp keeps its own.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
  endif()
elseif(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  message(STATUS "libddp is not optimised, because CMAKE_BUILD_TYPE is not set")
endif()

# nvcc has warnings of its own (lib/device/cuda) and does not know these.
if(PROJECT_IS_TOP_LEVEL OR DDP_WARNINGS_AS_ERRORS)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wshadow;-Wpointer-arith;-Wcast-qual>")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>)
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang>:-Wthread-safety>)  # lib/util/mutex.h
  add_compile_options($<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>)
endif()
if(DDP_WARNINGS_AS_ERRORS)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
# Processors with SSSE3 and without SSE4 are older than 2008; they take the code without SIMD.
if(NOT DDP_SANITIZE)
  add_compile_definitions(HWY_DISABLED_TARGETS=HWY_SSSE3)
else()
  # The optimised build has every instruction set; a sanitizer learns nothing new from more than two, and of threads not from two.
  set(without HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL)
  if(DDP_SANITIZE MATCHES thread)
    string(APPEND without |HWY_AVX2)
  endif()
  add_compile_definitions("HWY_DISABLED_TARGETS=(${without})")
  add_compile_options(-fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DDP_SANITIZE})
  if(DDP_BUILD_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link -fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/tests/fuzz/ignore.txt)
  endif()
  if(DDP_SANITIZE MATCHES undefined)
    # Clang gives programs in C, which must be able to load the library, nothing to check types of C++ objects with.
    add_compile_options(-fno-sanitize=vptr)
    # Modules are bound when they are loaded, also the handlers of checks that Clang links into programs in C++ only.
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
      add_link_options(-fsanitize-link-c++-runtime)
      link_libraries($<$<LINK_LANGUAGE:C>:stdc++>)
    endif()
    # AddressSanitizer sees these, too, when memory is touched.
    add_compile_options(-fno-sanitize=null,object-size)
  endif()
endif()
