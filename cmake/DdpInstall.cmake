# Install rules: what `cmake --install` puts where, in components: runtime, dev, tools, gloo, etcd, mpi, cuda, python,
# java and julia (bindings/*). DdpPackage.cmake makes a .deb of each.
include(CMakePackageConfigHelpers)

if(DDP_SHARED)
  install(TARGETS ddp EXPORT ddp
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
endif()
install(TARGETS ddp_static EXPORT ddp_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
if(CMAKE_STRIP AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  # CMake strips no archives; two thirds of this one are what abidiff reads (DdpDebugInfo.cmake).
  install(CODE "if(CMAKE_INSTALL_DO_STRIP)
    execute_process(COMMAND ${CMAKE_STRIP} --strip-debug
      \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/libddp.a\" COMMAND_ERROR_IS_FATAL ANY)
  endif()" COMPONENT dev)
endif()

# In a project that contains libddp, CMAKE_INSTALL_DOCDIR is the project's.
set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddp)
if(PROJECT_IS_TOP_LEVEL)
  set(doc_dir ${CMAKE_INSTALL_DOCDIR})
endif()
install(FILES LICENSE DESTINATION ${doc_dir} COMPONENT runtime)
foreach(module ${DDP_MODULES})
  if(TARGET ddp_${module})
    # Where lib/util/module.cc looks: beside libddp.so.
    install(TARGETS ddp_${module} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ddp COMPONENT ${module})
    if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
      # On a cluster MPI often lies where only its own compiler looks.
      set_target_properties(ddp_${module} PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
    endif()
  endif()
endforeach()

install(DIRECTORY include/ddp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES include/ddp_torch.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)

# The pages, and what they link to: the examples with their data, and the headers, by symbolic links. Not what examples/c/llm.c/fetch
# has fetched.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md DESTINATION ${doc_dir} COMPONENT dev)
install(DIRECTORY docs DESTINATION ${doc_dir} COMPONENT dev FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(DIRECTORY examples DESTINATION ${doc_dir} COMPONENT dev PATTERN CMakeLists.txt EXCLUDE PATTERN __pycache__ EXCLUDE
  PATTERN "llm.c/source*" EXCLUDE)
# Bindings that users compile from source.
install(DIRECTORY bindings/rust/ddp bindings/rust/ddp-sys DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/ddp/rust COMPONENT dev
  FILES_MATCHING PATTERN "*.rs" PATTERN Cargo.toml PATTERN target EXCLUDE)
install(DIRECTORY bindings/go DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/ddp COMPONENT dev
  FILES_MATCHING PATTERN "*.go" PATTERN "*.c" PATTERN "*.h" PATTERN go.mod)
# A class that users compile with Spark's jars.
install(DIRECTORY bindings/java/spark DESTINATION ${doc_dir}/bindings/java COMPONENT dev)
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_INCLUDEDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX} OUTPUT_VARIABLE headers)
cmake_path(ABSOLUTE_PATH doc_dir BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX} OUTPUT_VARIABLE pages)
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/doc)
foreach(header ddp ddp_torch.hpp)
  file(RELATIVE_PATH header_from_pages ${pages}/include ${headers}/${header})
  file(CREATE_LINK ${header_from_pages} ${CMAKE_CURRENT_BINARY_DIR}/doc/${header} SYMBOLIC)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/doc/${header} DESTINATION ${doc_dir}/include COMPONENT dev)
endforeach()

# The libraries that libddp.a needs, and their folders, but for those in which every linker looks.
set(DDP_LIBRARIES uv ssl crypto hwy)
set(DDP_LIBRARY_FOLDERS
  ${DDP_UV_STATIC_LIBRARY_DIRS} ${DDP_SSL_STATIC_LIBRARY_DIRS} ${DDP_CRYPTO_STATIC_LIBRARY_DIRS} ${DDP_HWY_STATIC_LIBRARY_DIRS})
list(REMOVE_DUPLICATES DDP_LIBRARY_FOLDERS)
list(REMOVE_ITEM DDP_LIBRARY_FOLDERS ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES})
include(DdpPkgConfig)

# CMake: find_package(ddp) gives ddp::ddp, and ddp::static if it is asked for.
set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ddp)
configure_package_config_file(cmake/ddpConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/ddpConfig.cmake
  INSTALL_DESTINATION ${cmake_dir})
# Before 1.0 a new minor version may break programs.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/ddpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ddpConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ddpConfigVersion.cmake
  DESTINATION ${cmake_dir} COMPONENT dev)
if(DDP_SHARED)
  install(EXPORT ddp NAMESPACE ddp:: FILE ddpTargets.cmake DESTINATION ${cmake_dir} COMPONENT dev)
endif()
install(EXPORT ddp_static NAMESPACE ddp:: FILE ddpStaticTargets.cmake DESTINATION ${cmake_dir} COMPONENT dev)

if(DDP_BUILD_TOOLS)
  if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    # In a prefix of its own the tools look for their library there, or beside themselves, where a wheel has it. In /usr the system's
    # search path does.
    file(RELATIVE_PATH lib_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(ddprun ddp-bench PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin};$ORIGIN")
  endif()
  install(TARGETS ddprun ddp-why ddp-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  install(FILES tools/why/report.py DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/ddp COMPONENT tools)
  install(FILES tools/run/completion.bash DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions RENAME ddprun
    COMPONENT tools)
  # The manual pages are what the tools' --help says.
  find_program(DDP_HELP2MAN help2man)
  if(DDP_HELP2MAN AND NOT DDP_SANITIZE)
    set(man ${CMAKE_CURRENT_BINARY_DIR}/man)
    file(MAKE_DIRECTORY ${man})
    function(ddp_man tool purpose)
      add_custom_command(OUTPUT ${man}/${tool}.1 DEPENDS ${tool} VERBATIM COMMENT "Generating ${tool}.1"
        COMMAND ${DDP_HELP2MAN} --no-info --name ${purpose} --output ${man}/${tool}.1 $<TARGET_FILE:${tool}>)
      add_custom_target(${tool}_man ALL DEPENDS ${man}/${tool}.1)
      install(FILES ${man}/${tool}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
    endfunction()
    ddp_man(ddprun "starts the ranks of a data-parallel program")
    ddp_man(ddp-why "says which rank holds a job up, and why")
    ddp_man(ddp-bench "measures libddp")
  endif()
endif()

if(PROJECT_IS_TOP_LEVEL AND DDP_SHARED)
  include(DdpPackage)
endif()
