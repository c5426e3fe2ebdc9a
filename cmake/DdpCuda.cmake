# Sets DDP_CUDA if the module libddp-cuda.so can be built, and else DDP_CUDA_MISSING to what is not there: the CUDA Toolkit with its
# compiler, and NCCL's header. NCCL's library is not needed: the module opens it when it is first used.
find_package(CUDAToolkit 12.0 QUIET)
if(NOT CUDAToolkit_FOUND)
  set(DDP_CUDA_MISSING "there is no CUDA Toolkit of 12.0 or newer: set CUDAToolkit_ROOT")
  return()
endif()

find_path(DDP_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME PATH_SUFFIXES include
  DOC "Folder of nccl.h")
if(NOT DDP_NCCL_INCLUDE)
  set(DDP_CUDA_MISSING "there is no nccl.h: set DDP_NCCL_INCLUDE to its folder")
  return()
endif()
file(STRINGS ${DDP_NCCL_INCLUDE}/nccl.h nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
string(REGEX REPLACE "[^0-9;]" "" nccl_version "${nccl_lines}")
string(REPLACE ";" "." nccl_version "${nccl_version}")
if(nccl_version VERSION_LESS 2.19)
  set(DDP_CUDA_MISSING "${DDP_NCCL_INCLUDE}/nccl.h is of NCCL ${nccl_version}, and 2.19 is needed")
  return()
endif()

# Machine code for the GPUs of data centres since 2020 (that of 80 also runs on 86, 87 and 89), and portable code, which a
# driver compiles for newer ones. What a toolkit knows depends on its version.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  set(DDP_CUDA_MISSING "no CUDA compiler works: set CMAKE_CUDA_COMPILER")
  return()
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know that nvcc 12 and newer have it
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# nvcc's own warnings, and those of the compiler for the host.
set(DDP_CUDA_WARNINGS $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow>)
if(DDP_WARNINGS_AS_ERRORS)
  list(APPEND DDP_CUDA_WARNINGS "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>"
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror>)
endif()
set(DDP_CUDA TRUE)
