#include "util/module.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "util/error.h"
#include "util/text.h"

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

struct Folder {
    std::string path;
    bool ours;  // beside this library, which was loaded from there too
};

std::vector<Folder> folders() {
    std::vector<Folder> result;
    if (const char* path = std::getenv("DDP_MODULE_PATH")) {
        TextIn parts(path);
        for (std::string part; std::getline(parts, part, ':');)
            if (!part.empty()) result.push_back({part, false});
    }
    result.push_back({own_folder() + "/ddp", true});
    return result;
}

// Root must not run what another user could have put there. Why it would; "" if not.
std::string distrust(const std::string& folder, const std::string& module) {
    if (geteuid() != 0) return "";
    for (const std::string& path : {folder, module}) {
        struct stat found {};
        if (stat(path.c_str(), &found) != 0) return std::strerror(errno);
        const bool others_write = (found.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (found.st_mode & S_ISVTX) == 0;
        if (found.st_uid != 0) return str(path, " belongs to user ", found.st_uid, ", and this process is root's");
        if (others_write) return str("other users can write to ", path, ", and this process is root's");
    }
    return "";
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
    for (const auto& [folder, ours] : folders()) {
        const std::string path = str(folder, "/libddp-", name, ".so");
        std::string why = "not there";
        if (access(path.c_str(), F_OK) == 0) {
            why = ours ? "" : distrust(folder, path);
            if (why.empty())
                if (void* function = entry_of(path, entry, &why)) return function;
        }
        *searched += str(searched->empty() ? "" : "; ", path, ": ", why);
    }
    *searched += " (DDP_MODULE_PATH names more folders)";
    return nullptr;
}

}  // namespace libddp
