# Cross-builds for 64-bit ARM with Debian's compiler and the libraries in build/arm64-root, which tools/test-arm makes.
#
# With DDP_EMULATED, which only tests need, each program is a script that starts the emulator with the real one, PROGRAM.arm64. So tests can
# start programs that start others, although the kernel knows no emulator (binfmt_misc).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
cmake_path(SET CMAKE_SYSROOT NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-root)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})

set(emulator qemu-aarch64 -L ${CMAKE_SYSROOT})
get_property(probing GLOBAL PROPERTY IN_TRY_COMPILE)
if(DDP_EMULATED AND NOT probing)
  list(JOIN emulator " " emulator)
  file(CONFIGURE OUTPUT emulated @ONLY CONTENT "#!/bin/sh
exec @emulator@ -0 \"$0\" \"$0.arm64\" \"$@\"
")
  foreach(language C CXX)
    set(CMAKE_${language}_LINK_EXECUTABLE
      "<CMAKE_${language}_COMPILER> <FLAGS> <CMAKE_${language}_LINK_FLAGS> <LINK_FLAGS> <OBJECTS> -o <TARGET>.arm64 <LINK_LIBRARIES>"
      "install -m 755 ${CMAKE_BINARY_DIR}/emulated <TARGET>")
  endforeach()
else()
  set(CMAKE_CROSSCOMPILING_EMULATOR ${emulator})
endif()
