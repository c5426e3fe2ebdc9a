// Loads what libddp finds in shared objects of its own: backends, kinds of devices.
#pragma once

#include <string>

namespace libddp {

// The function `entry` of libddp-NAME.so, from the folders of DDP_MODULE_PATH and then "ddp/" beside this library, or beside
// the program that libddp.a is linked into. A module stays loaded. Root loads from DDP_MODULE_PATH only files and folders that nobody
// else can write, and loads the very file that it has checked. Null if there is none; *searched then says where it was looked for and
// why a file that was there did not load.
void* load_module_entry(const std::string& name, const char* entry, std::string* searched);

}  // namespace libddp
