# What `cmake --install` puts where, in components: runtime, dev, tools, mpi, cuda, python, java and julia (bindings/*). DdpPackage.cmake
# makes a .deb of each.
include(CMakePackageConfigHelpers)
include(DdpExports)
include(DdpDebugInfo)

install(TARGETS ddp EXPORT ddp
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
if(DDP_MPI)
  # Where lib/comm/plugin looks: beside libddp.so.
  install(TARGETS ddp_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ddp COMPONENT mpi)
  if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    # On a cluster MPI often lies where only its own compiler looks.
    set_target_properties(ddp_mpi PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
  endif()
endif()

if(DDP_CUDA)
  install(TARGETS ddp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ddp COMPONENT cuda)
endif()

install(DIRECTORY include/ddp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")

# pkg-config. The file finds its own prefix, so that an installed tree can be moved; how far up the prefix lies depends on
# the library folder (lib, lib64, lib/x86_64-linux-gnu).
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH DDP_PREFIX_FROM_PC /${pkgconfig_dir} /)
string(REGEX REPLACE "/$" "" DDP_PREFIX_FROM_PC "${DDP_PREFIX_FROM_PC}")
configure_file(pkgconfig/ddp.pc.in ${CMAKE_CURRENT_BINARY_DIR}/ddp.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ddp.pc DESTINATION ${pkgconfig_dir} COMPONENT dev)

# CMake: find_package(ddp) gives ddp::ddp.
set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ddp)
configure_package_config_file(cmake/ddpConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/ddpConfig.cmake
  INSTALL_DESTINATION ${cmake_dir})
# Before 1.0 a new minor version may break programs.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/ddpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ddpConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ddpConfigVersion.cmake
  DESTINATION ${cmake_dir} COMPONENT dev)
install(EXPORT ddp NAMESPACE ddp:: FILE ddpTargets.cmake DESTINATION ${cmake_dir} COMPONENT dev)

if(DDP_BUILD_TOOLS)
  if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    # In a prefix of its own the tools look for their library beside themselves; in /usr the system's search path does.
    file(RELATIVE_PATH lib_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(ddprun ddp-bench PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}")
  endif()
  install(TARGETS ddprun ddp-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()

include(DdpPackage)
