// The records of another node, packed, as node 0 of ddprun finds them in the store.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "fuzz/target.h"
#include "why/folder.h"

namespace fuzz::packed_records {
namespace {

namespace fs = std::filesystem;

struct Folder {
    Folder() { check(mkdtemp(path.data()) != nullptr, "there is no folder"); }
    ~Folder() { fs::remove_all(path); }
    std::string path = "/tmp/fuzz-packed-XXXXXX";
};

}  // namespace

DDP_FUZZ_TARGET(packed_records, input) {
    static const Folder parent;
    const std::string folder = parent.path + "/records";
    fs::create_directory(folder);
    try {
        libddp::record::unpack_records(folder, input);
    } catch (const std::runtime_error&) {  // damaged
    }
    for (const auto& entry : fs::directory_iterator(parent.path))
        check(entry.path() == folder, "a record lies outside of the folder");
    for (const auto& entry : fs::directory_iterator(folder))
        check(entry.is_regular_file(), "a record is no file");
    fs::remove_all(folder);
}

}  // namespace fuzz::packed_records
