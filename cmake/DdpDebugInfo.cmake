# The functions of the C ABI carry debugging information in the release build, from which abidiff reads their types. Only
# lib/capi needs it: that is where every exported function is defined.
if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
  return()
endif()
target_compile_options(ddp_capi PRIVATE -g)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Functions with equal machine code would be folded into one, and abidiff would not see the types of the others.
  target_compile_options(ddp_capi PRIVATE -fno-ipa-icf)
endif()

# libabigail tells public types from private ones by the name of the header, without its folder. A private header with the
# name of a public one gets another name in the debugging information, or the inside of its types would count as ABI.
file(GLOB public_headers RELATIVE ${PROJECT_SOURCE_DIR}/include/ddp ${PROJECT_SOURCE_DIR}/include/ddp/*.h)
foreach(name ${public_headers})
  file(GLOB private_headers ${PROJECT_SOURCE_DIR}/lib/*/${name})
  foreach(header ${private_headers})
    get_filename_component(folder ${header} DIRECTORY)
    target_compile_options(ddp_capi PRIVATE -fdebug-prefix-map=${header}=${folder}/private-${name})
  endforeach()
endforeach()
