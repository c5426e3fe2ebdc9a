#include "util/module.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "util/error.h"

namespace libddp {
namespace {

// The folder of the shared object that this code is in, or of the program that libddp.a is linked into. The loader knows a
// program only by the name it was called with, which need not lead to a file.
std::string own_folder() {
    Dl_info info;
    link_map* map = nullptr;
    std::string path = "/proc/self/exe";
    if (dladdr1(reinterpret_cast<const void*>(&load_module_entry), &info, reinterpret_cast<void**>(&map),
                RTLD_DL_LINKMAP) &&
        map && map->l_name[0] != '\0') {
        path = map->l_name;
    } else {
        std::error_code ignored;
        path = std::filesystem::read_symlink(path, ignored).string();
    }
    auto slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::vector<std::string> folders() {
    std::vector<std::string> result;
    if (const char* path = std::getenv("DDP_MODULE_PATH")) {
        std::istringstream parts(path);
        for (std::string part; std::getline(parts, part, ':');)
            if (!part.empty()) result.push_back(part);
    }
    result.push_back(own_folder() + "/ddp");
    return result;
}

void* entry_of(const std::string& path, const char* entry, std::string* why) {
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        *why = dlerror();
        return nullptr;
    }
    void* function = dlsym(module, entry);
    if (!function) {
        *why = str("it does not export ", entry);
        dlclose(module);
    }
    return function;
}

}  // namespace

void* load_module_entry(const std::string& name, const char* entry, std::string* searched) {
    for (auto& folder : folders()) {
        std::string path = str(folder, "/libddp-", name, ".so");
        std::string why = "not there";
        if (access(path.c_str(), F_OK) == 0)
            if (void* function = entry_of(path, entry, &why)) return function;
        *searched += str(searched->empty() ? "" : "; ", path, ": ", why);
    }
    *searched += " (DDP_MODULE_PATH names more folders)";
    return nullptr;
}

}  // namespace libddp
