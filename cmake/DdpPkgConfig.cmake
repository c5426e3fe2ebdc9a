# ddp.pc, and ddp-static.pc for libddp.a; ddp-torch.pc for ddp_torch.hpp. The first two require no other .pc file: pkg-config would want to see those that are
# required in private too, and would hand their flags to users of the shared library, who need none of them.

# The libraries that libddp.a needs, for the linker. A library comes after those that use it: of equal names the last
# one stays.
set(needed ${DDP_UV_STATIC_LIBRARIES} ${DDP_SSL_STATIC_LIBRARIES} ${DDP_CRYPTO_STATIC_LIBRARIES} ${DDP_HWY_STATIC_LIBRARIES}
  ${DDP_CXX_RUNTIME} ${CMAKE_DL_LIBS})
list(REVERSE needed)
list(REMOVE_DUPLICATES needed)
list(REVERSE needed)
list(TRANSFORM needed PREPEND -l)
set(folders ${DDP_LIBRARY_FOLDERS})
list(TRANSFORM folders PREPEND -L)
string(REPLACE ";" " " needed "${folders};${needed};-pthread")
string(STRIP "${needed}" needed)

# The files find their own prefix, so that an installed tree can be moved; how far up the prefix lies depends on the library
# folder (lib, lib64, lib/x86_64-linux-gnu). A folder with a whole path is meant to stay where it is.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(DDP_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up /${pkgconfig_dir} /)
  string(REGEX REPLACE "/$" "" up "${up}")
  set(DDP_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(folder LIBDIR INCLUDEDIR)
  set(DDP_PC_${folder} ${CMAKE_INSTALL_${folder}})
  if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_${folder}})
    string(PREPEND DDP_PC_${folder} "\${prefix}/")
  endif()
endforeach()

set(DDP_PC_NAME ddp)
set(DDP_PC_KIND)
set(DDP_PC_LIBS "-L\${libdir} -lddp")
set(DDP_PC_LIBS_PRIVATE ${needed})
if(NOT DDP_SHARED)
  string(APPEND DDP_PC_LIBS " ${needed}")
  set(DDP_PC_LIBS_PRIVATE)
endif()
configure_file(pkgconfig/ddp.pc.in ${CMAKE_CURRENT_BINARY_DIR}/ddp.pc @ONLY)

set(DDP_PC_NAME ddp-static)
set(DDP_PC_KIND ": the static library")
set(DDP_PC_LIBS "-L\${libdir} -l:libddp.a ${needed}")
set(DDP_PC_LIBS_PRIVATE)
configure_file(pkgconfig/ddp.pc.in ${CMAKE_CURRENT_BINARY_DIR}/ddp-static.pc @ONLY)
configure_file(pkgconfig/ddp-torch.pc.in ${CMAKE_CURRENT_BINARY_DIR}/ddp-torch.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ddp.pc ${CMAKE_CURRENT_BINARY_DIR}/ddp-static.pc ${CMAKE_CURRENT_BINARY_DIR}/ddp-torch.pc
  DESTINATION ${pkgconfig_dir} COMPONENT dev)
