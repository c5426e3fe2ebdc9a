// Loads what libddp finds in shared objects of its own: backends, kinds of devices.
#pragma once

#include <string>

#include "util/interrupt.h"

namespace libddp {

// libddp's version and a hash of the headers that it shares with its modules, and of the compiler:
// "0.1.0, build 0a1b2c3d". A module and the library understand each other's C++ only if both have
// the same.
const char* build_identity();

// libddp gives these to its own modules when it loads them, in the function ddp_module_begin(const
// ModuleServices*), which a module may export.
struct ModuleServices {
    const char* build;  // of the library
    const interrupt::Source* interrupts;
};

// The function `entry` of libddp-NAME.so, from the folders of DDP_MODULE_PATH and then "ddp/"
// beside this library, or beside the program that libddp.a is linked into. A module stays loaded.
// Root loads from DDP_MODULE_PATH only files and folders that nobody else can write, and loads the
// very file that it has checked. Null if there is none; *searched then says where it was looked for
// and why a file that was there did not load.
void* load_module_entry(const std::string& name, const char* entry, std::string* searched);

// How a machine gets a module of libddp's own, as the end of a message: "; install the package
// libddp-mpi ...". "" for a module of somebody else.
std::string how_to_get_module(const std::string& name);

// In a module, as its ddp_module_begin.
void begin_module(const ModuleServices& services);

}  // namespace libddp
