# The symbols that libddp.so shows to the linker: the functions of include/ddp and nothing else.
set(DDP_VERSION_SCRIPT ${CMAKE_CURRENT_BINARY_DIR}/ddp.map)
configure_file(${CMAKE_CURRENT_LIST_DIR}/ddp.map.in ${DDP_VERSION_SCRIPT} @ONLY)

# Hidden visibility hides libddp's own code; the version script also hides what libraries linked in statically, and the
# standard library's templates instantiated here, would export.
target_link_options(ddp PRIVATE LINKER:--version-script=${DDP_VERSION_SCRIPT} LINKER:--no-undefined-version)
set_property(TARGET ddp APPEND PROPERTY LINK_DEPENDS ${DDP_VERSION_SCRIPT})
if(NOT DDP_SANITIZE)
  # Sanitized code needs symbols that only the program's start-up code brings.
  target_link_options(ddp PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(ddp PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${DDP_ABI_VERSION})
