# System packages. docs/dependencies.md says why each one is here.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(uv REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(crypto REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
find_path(GLOO_INCLUDE_DIR gloo/config.h REQUIRED)
find_library(GLOO_LIBRARY gloo REQUIRED)
