# Which bindings are built: those whose tools are there. Not with sanitizers: an interpreter that is not sanitized cannot
# load a library that is.
if(DDP_SANITIZE)
  set(bindings_default OFF)
else()
  set(bindings_default ON)
endif()

find_program(SWIG_EXECUTABLE swig)

# Python: the system's own, if it has headers; its packages (NumPy, PyTorch) are Debian's. Another: -DPython3_EXECUTABLE=...
if(NOT Python3_EXECUTABLE AND EXISTS /usr/bin/python3)
  execute_process(
    COMMAND /usr/bin/python3 -c "import os, sysconfig; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
    OUTPUT_VARIABLE system_python_has_headers ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(system_python_has_headers STREQUAL "True")
    set(Python3_EXECUTABLE /usr/bin/python3 CACHE FILEPATH "The Python that scripts run with and the binding is built for")
  endif()
endif()
find_package(Python3 3.10 COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)

if(bindings_default AND SWIG_EXECUTABLE AND Python3_Development.Module_FOUND)
  set(python_default ON)
else()
  set(python_default OFF)
endif()
option(DDP_BUILD_PYTHON "Build the Python binding (needs SWIG and Python's headers)" ${python_default})
if(DDP_BUILD_PYTHON AND NOT (SWIG_EXECUTABLE AND Python3_Development.Module_FOUND))
  message(FATAL_ERROR "DDP_BUILD_PYTHON needs SWIG and Python's headers (Debian: swig, python3-dev)")
endif()

# Java: a JDK of 17 or newer.
find_package(Java 17 QUIET COMPONENTS Development Runtime)
if(Java_JAVAC_EXECUTABLE)
  # JNI's headers are those of the compiler. (FindJNI looks in places of its own first.)
  get_filename_component(jdk ${Java_JAVAC_EXECUTABLE} REALPATH)
  get_filename_component(jdk ${jdk}/../.. ABSOLUTE)
  find_path(DDP_JNI_INCLUDE jni.h HINTS ${jdk}/include NO_DEFAULT_PATH)
  find_path(DDP_JNI_INCLUDE_MACHINE jni_md.h HINTS ${jdk}/include ${jdk}/include/linux NO_DEFAULT_PATH)
endif()
if(bindings_default AND SWIG_EXECUTABLE AND Java_FOUND AND DDP_JNI_INCLUDE)
  set(java_default ON)
else()
  set(java_default OFF)
endif()
set(DDP_JAVA_FLAGS --release 17 -encoding UTF-8)
if(Java_VERSION_MAJOR EQUAL 17 AND DDP_WARNINGS_AS_ERRORS)
  # Later compilers warn about more, and have no list of what 17 knows.
  list(APPEND DDP_JAVA_FLAGS -Xlint:all,-classfile,-processing,-try -Werror)
endif()
option(DDP_BUILD_JAVA "Build the Java binding (needs SWIG and a JDK)" ${java_default})
if(DDP_BUILD_JAVA AND NOT (SWIG_EXECUTABLE AND Java_FOUND AND DDP_JNI_INCLUDE))
  message(FATAL_ERROR "DDP_BUILD_JAVA needs SWIG and a JDK, 17 or newer (Debian: swig, openjdk-17-jdk-headless)")
endif()

# Julia: one whose exceptions work (docs/julia.md, "Debian").
find_program(JULIA_EXECUTABLE julia)
set(julia_default OFF)
if(bindings_default AND SWIG_EXECUTABLE AND Python3_Interpreter_FOUND AND JULIA_EXECUTABLE)
  execute_process(
    COMMAND ${JULIA_EXECUTABLE} --startup-file=no -e "f(x) = x > 0 ? error() : x; try f(1) catch; print(VERSION >= v\"1.5\") end"
    OUTPUT_VARIABLE julia_works ERROR_QUIET TIMEOUT 60)
  if(julia_works STREQUAL "true")
    set(julia_default ON)
  endif()
endif()
option(DDP_BUILD_JULIA "Build the Julia binding (needs SWIG, Python and Julia 1.5 or newer)" ${julia_default})
if(DDP_BUILD_JULIA AND NOT (SWIG_EXECUTABLE AND Python3_Interpreter_FOUND))
  message(FATAL_ERROR "DDP_BUILD_JULIA needs SWIG and Python (Debian: swig, python3)")
elseif(NOT DDP_BUILD_JULIA AND NOT DDP_SANITIZE)
  message(STATUS "No Julia that works: its binding is not built and not tested (DDP_BUILD_JULIA, tools/setup-julia)")
endif()
