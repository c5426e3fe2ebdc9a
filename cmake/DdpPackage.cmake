# Debian packages, one for each install component: cpack in a build folder made with the preset "package".
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libddp)
set(CPACK_PACKAGE_VENDOR libddp)
set(CPACK_PACKAGE_CONTACT "libddp developers <libddp@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_ALL runtime dev tools)
foreach(module ${DDP_MODULES})
  if(TARGET ddp_${module})
    list(APPEND CPACK_COMPONENTS_ALL ${module})
  endif()
endforeach()
if(DDP_BUILD_PYTHON)
  list(APPEND CPACK_COMPONENTS_ALL python)
endif()
if(DDP_BUILD_JAVA)
  list(APPEND CPACK_COMPONENTS_ALL java)
endif()
if(DDP_BUILD_JULIA)
  list(APPEND CPACK_COMPONENTS_ALL julia)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(library_package libddp${DDP_ABI_VERSION})
set(same_version "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${library_package})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
# The first line of a description is the project's own.
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "The shared library that programs are linked with.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
# Tells dpkg-shlibdeps, and so the packages of programs, which package the library is in.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libddp-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEV_DESCRIPTION
  "Headers, the static library, documentation, examples, and the files for pkg-config and CMake.")
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "${library_package} ${same_version}")
# For programs that link libddp.a. The examples need zlib.
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS "libuv1-dev, libssl-dev, libhwy-dev, zlib1g-dev")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME libddp-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION
  "ddprun starts the ranks of a job; ddp-why says who holds it up; ddp-bench measures collectives and training steps.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "${library_package} ${same_version}")
# For reports, and for `ddp-bench peers`, which does without what is missing.
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS "python3, python3-plotly, python3-torch, python3-matplotlib, openmpi-bin, libopenmpi-dev")

# Modules, apart from the library, which needs nothing that they need. The driver of a GPU and NCCL are opened at run time, and often
# come from elsewhere than Debian: no package is named for them.
set(CPACK_COMPONENT_GLOO_DESCRIPTION "The backend gloo: collectives over TCP by the library Gloo.")
set(CPACK_COMPONENT_ETCD_DESCRIPTION "The store on etcd, for ranks that meet at an address etcd://.")
set(CPACK_COMPONENT_MPI_DESCRIPTION "The backend mpi, for programs that mpirun starts.")
set(CPACK_COMPONENT_CUDA_DESCRIPTION "Gradients on NVIDIA GPUs, and the backend nccl.")
foreach(module ${DDP_MODULES})
  string(TOUPPER ${module} component)
  set(CPACK_DEBIAN_${component}_PACKAGE_NAME libddp-${module})
  set(CPACK_DEBIAN_${component}_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_${component}_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_${component}_PACKAGE_DEPENDS "${library_package} ${same_version}")
endforeach()
string(APPEND CPACK_DEBIAN_ETCD_PACKAGE_DEPENDS ", libcurl4")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-ddp)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "The module ddp for Python.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS ON)
# The extension module is of one version of Python; the next one needs another build.
math(EXPR next_python_minor "${Python3_VERSION_MINOR} + 1")
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "${library_package} ${same_version}, \
python3 (>= ${Python3_VERSION_MAJOR}.${Python3_VERSION_MINOR}), python3 (<< ${Python3_VERSION_MAJOR}.${next_python_minor})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA
  "${PROJECT_SOURCE_DIR}/cmake/python3-ddp/postinst;${PROJECT_SOURCE_DIR}/cmake/python3-ddp/prerm")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS "python3-numpy, libddp-tools")

set(CPACK_DEBIAN_JAVA_PACKAGE_NAME libddp-java)
set(CPACK_DEBIAN_JAVA_PACKAGE_SECTION java)
set(CPACK_COMPONENT_JAVA_DESCRIPTION "The package org.libddp for Java.")
set(CPACK_DEBIAN_JAVA_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_JAVA_PACKAGE_DEPENDS "${library_package} ${same_version}, \
default-jre-headless (>= 2:1.17) | java17-runtime-headless")
set(CPACK_DEBIAN_JAVA_PACKAGE_SUGGESTS "libddp-tools")

# Source that Julia compiles when it is used. Julia itself is not among Debian 12's packages.
set(CPACK_DEBIAN_JULIA_PACKAGE_NAME julia-ddp)
set(CPACK_DEBIAN_JULIA_PACKAGE_SECTION science)
set(CPACK_COMPONENT_JULIA_DESCRIPTION "The package DDP for Julia.")
set(CPACK_DEBIAN_JULIA_PACKAGE_DEPENDS "${library_package} ${same_version}")
set(CPACK_DEBIAN_JULIA_PACKAGE_SUGGESTS "julia, libddp-tools")
# The tools' library is in the build tree, not yet installed.
get_target_property(library_folder ddp BINARY_DIR)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${library_folder})

include(CPack)
