# System packages. docs/dependencies.md says why each one is here. All names begin with DDP_: a project that contains libddp
# may look for the same packages.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(DDP_UV REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(DDP_CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(DDP_HWY REQUIRED IMPORTED_TARGET libhwy)
find_path(DDP_GLOO_INCLUDE gloo/config.h REQUIRED)
find_library(DDP_GLOO_LIBRARY gloo REQUIRED)
find_path(DDP_RANDOM123_INCLUDE Random123/philox.h REQUIRED)
mark_as_advanced(DDP_GLOO_INCLUDE DDP_GLOO_LIBRARY DDP_RANDOM123_INCLUDE)

# What a program in C needs besides, because parts of libddp.a are C++.
set(DDP_CXX_RUNTIME ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(REMOVE_ITEM DDP_CXX_RUNTIME ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})
list(REMOVE_DUPLICATES DDP_CXX_RUNTIME)

# Modules are for those who install libddp. A project that contains it asks for them.
if(PROJECT_IS_TOP_LEVEL)
  set(modules_default AUTO)
else()
  set(modules_default OFF)
endif()

# For the module libddp-mpi.so alone. AUTO: built if there is an MPI; ON: or fail; OFF: never.
set(DDP_BUILD_MPI ${modules_default} CACHE STRING "Build the backend mpi: AUTO, ON or OFF")
set_property(CACHE DDP_BUILD_MPI PROPERTY STRINGS AUTO ON OFF)
set(DDP_MPI FALSE)
if(NOT DDP_BUILD_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DDP_BUILD_MPI is '${DDP_BUILD_MPI}'; it must be AUTO, ON or OFF")
elseif(NOT DDP_BUILD_MPI STREQUAL "OFF")
  find_package(MPI 3.0 COMPONENTS C)
  set(DDP_MPI ${MPI_C_FOUND})
  if(NOT DDP_MPI AND DDP_BUILD_MPI STREQUAL "ON")
    message(FATAL_ERROR "DDP_BUILD_MPI is ON, but there is no MPI: install libopenmpi-dev, or set MPI_C_COMPILER")
  elseif(NOT DDP_MPI)
    message(STATUS "No MPI found: the backend mpi is not built (DDP_BUILD_MPI)")
  endif()
endif()

# For the module libddp-cuda.so alone; AUTO, ON and OFF as above.
set(DDP_BUILD_CUDA ${modules_default} CACHE STRING "Build the CUDA module: AUTO, ON or OFF")
set_property(CACHE DDP_BUILD_CUDA PROPERTY STRINGS AUTO ON OFF)
set(DDP_CUDA FALSE)
if(NOT DDP_BUILD_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DDP_BUILD_CUDA is '${DDP_BUILD_CUDA}'; it must be AUTO, ON or OFF")
elseif(NOT DDP_BUILD_CUDA STREQUAL "OFF")
  include(DdpCuda)
  if(NOT DDP_CUDA AND DDP_BUILD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DDP_BUILD_CUDA is ON, but ${DDP_CUDA_MISSING}")
  elseif(NOT DDP_CUDA)
    message(STATUS "The CUDA module is not built (DDP_BUILD_CUDA): ${DDP_CUDA_MISSING}")
  endif()
endif()
