# Flags for libddp's own C and C++, in the library, the tools and the bindings: many a write beyond its place ends the process before an
# attacker gains control of it. docs/security.md says what they cost. Folders include this file. nvcc does not get these flags, and tests
# are not what an attacker reaches.

# Indices, empty containers and null pointers of the standard library. Nothing in its ABI changes.
add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
if(DDP_SANITIZE)
  # Sanitizers find more than what follows. With -z now, a program in C could not load the library: it lacks symbols of theirs for C++.
  return()
endif()
add_link_options(LINKER:-z,relro,-z,now)
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong>)

# The C library checks sizes only in optimised code. Some distributions define a level for every program, and packagers choose one.
if(NOT "${CMAKE_C_FLAGS} ${CMAKE_CXX_FLAGS}" MATCHES "_FORTIFY_SOURCE")
  set(level 3)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
    set(level 2)  # without __builtin_dynamic_object_size
  endif()
  set(optimised $<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>)
  add_compile_options($<${optimised}:-U_FORTIFY_SOURCE> $<${optimised}:-D_FORTIFY_SOURCE=${level}>)
endif()
