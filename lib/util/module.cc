#include "util/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "util/descriptors.h"
#include "util/error.h"
#include "util/mutex.h"
#include "util/printable.h"
#include "util/text.h"
#include "util/version.h"

namespace libddp {
namespace {

constexpr std::size_t kLongestName = 64;

// The folder of the shared object that this code is in, or of the program that libddp.a is linked
// into. The loader knows a program only by the name it was called with, which need not lead to a
// file.
std::string own_folder() {
    Dl_info info;
    link_map* map = nullptr;
    std::string path = "/proc/self/exe";
    if (dladdr1(reinterpret_cast<const void*>(&load_module_entry), &info,
                reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) &&
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

// A name becomes part of a path. It has letters, digits, '-' and '_' only, so it stays inside the
// folder.
bool is_name(const std::string& name) {
    const auto allowed = [](unsigned char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_';
    };
    return !name.empty() && name.size() <= kLongestName &&
           std::all_of(name.begin(), name.end(), allowed);
}

// Why root would run what another user could have put there; "" if not.
std::string distrust(int fd, const std::string& path) {
    struct stat found {};
    if (fstat(fd, &found) != 0) return std::strerror(errno);
    const bool others_write =
        (found.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (found.st_mode & S_ISVTX) == 0;
    if (found.st_uid != 0)
        return str(path, " belongs to user ", found.st_uid, ", and this process is root's");
    if (others_write) return str("other users can write to ", path, ", and this process is root's");
    return "";
}

// The handle of each file that root has loaded from a descriptor. Never freed: threads may load
// while the process ends.
struct Loaded {
    Mutex mutex;
    std::map<std::pair<dev_t, ino_t>, void*> modules DDP_GUARDED_BY(mutex);
};

Loaded& loaded() {
    static Loaded& all = *new Loaded;
    return all;
}

// Loads the very file that was looked at: its path may lead to another one a moment later. Null:
// *why says why.
void* load_checked(const std::string& folder_path, const std::string& path, std::string* why) {
    const Descriptor folder(open(folder_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    Descriptor file(
        folder ? openat(folder.get(), path.c_str() + folder_path.size() + 1, O_RDONLY | O_CLOEXEC)
               : -1);
    struct stat found {};
    if (!file || fstat(file.get(), &found) != 0) {
        *why = std::strerror(errno);
        return nullptr;
    }
    *why = distrust(folder.get(), folder_path);
    if (why->empty()) *why = distrust(file.get(), path);
    if (!why->empty()) return nullptr;
    Loaded& known = loaded();
    const std::pair key{found.st_dev, found.st_ino};
    {
        const Lock lock(known.mutex);
        if (const auto it = known.modules.find(key); it != known.modules.end()) return it->second;
    }
    // Without the lock: the module's constructors may look for another module. For two threads that
    // load one file, the loader has one module.
    void* module = dlopen(str("/proc/self/fd/", file.get()).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        *why = dlerror();
        return nullptr;
    }
    // stays open: the loader knows the module by the number, which no other file may get
    file.release();
    const Lock lock(known.mutex);
    return known.modules.emplace(key, module).first->second;
}

void* load_from(const std::string& path, std::string* why) {
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!module) *why = dlerror();
    return module;
}

// Calls ddp_module_begin of a module that has it, again for each time that the module is loaded.
void begin(void* module) {
    static const ModuleServices services{build_identity(), &interrupt::own_source()};
    using Begin = void(const ModuleServices*);
    if (auto* given = reinterpret_cast<Begin*>(dlsym(module, "ddp_module_begin"))) given(&services);
}

}  // namespace

const char* build_identity() {
    return LIBDDP_VERSION ", build " DDP_BUILD;
}

void begin_module(const ModuleServices& services) {
    if (std::strcmp(services.build, build_identity()) == 0) interrupt::ask(*services.interrupts);
}

std::string how_to_get_module(const std::string& name) {
    static constexpr std::array<std::string_view, 4> kOurs{"cuda", "etcd", "gloo", "mpi"};
    if (std::find(kOurs.begin(), kOurs.end(), name) == kOurs.end()) return "";
    std::string option = "DDP_BUILD_" + name;
    for (char& c : option)
        if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    return str("; install the Debian package libddp-", name, ", or build libddp with ", option,
               "=ON");
}

void* load_module_entry(const std::string& name, const char* entry, std::string* searched) {
    if (!is_name(name)) {
        *searched =
            str(in_quotes(name), " is no name of a module, which has letters, digits, '-' and '_'");
        return nullptr;
    }
    for (const auto& [folder, ours] : folders()) {
        const std::string path = str(folder, "/libddp-", name, ".so");
        std::string why = "not there";
        if (access(path.c_str(), F_OK) == 0) {
            const bool check = geteuid() == 0 && !ours;
            void* module = check ? load_checked(folder, path, &why) : load_from(path, &why);
            void* function = module ? dlsym(module, entry) : nullptr;
            if (function) {
                begin(module);
                return function;
            }
            if (module) why = str("it does not export ", entry);
        }
        *searched += str(searched->empty() ? "" : "; ", path, ": ", why);
    }
    *searched += " (DDP_MODULE_PATH names more folders)";
    return nullptr;
}

}  // namespace libddp
