// A rank's file of a save, in a folder whose index is right. The input is the file as it is; or, if
// its first byte is even, the header up to a NUL, in which $C stands for the checksum of what
// follows, the elements.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ddp/ddp.h"
#include "fuzz/target.h"
#include "util/hash.h"

namespace fuzz::shard_state {
namespace {

constexpr float kUntouched = -7;

class Loader {
public:
    Loader() {
        ddp_group_options options;
        ddp_group_options_init(&options);
        options.rank = 0;
        options.world_size = 1;
        require(ddp_group_create(&options, &group_, nullptr));
        require(ddp_context_create(group_, nullptr, &context_, nullptr));
        add("a", {4, 6}, DDP_F32);
        add("b/c@d", {3}, DDP_F32);
        require(ddp_commit(context_, nullptr));
        std::string folder =
            (access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                           : std::filesystem::temp_directory_path().string()) +
            "/fuzz-of-ddp-XXXXXX";
        check(mkdtemp(folder.data()) != nullptr, "there is no temporary folder");
        folder_ = folder;
        std::ofstream(folder_ + "/shards.json")
            << R"({"format":"libddp-shards-1","save":"0123456789abcdef","world":1})";
    }
    ~Loader() {
        ddp_context_free(context_);
        ddp_group_free(group_);
        std::filesystem::remove_all(folder_);
    }
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    void load(const std::string& file) {
        std::ofstream(folder_ + "/shard-00000-of-00001-0123456789abcdef.safetensors",
                      std::ios::binary)
            << file;
        std::vector<float> m(24, kUntouched), v(3, kUntouched);
        require(ddp_shard_array(context_, "m", 0, 0, 24, DDP_F32, m.data(), 0, nullptr));
        require(ddp_shard_array(context_, "v", 1, 1, 2, DDP_F32, v.data(), 0, nullptr));
        char* note = nullptr;
        const ddp_status status = ddp_shard_load(context_, folder_.c_str(), &note, nullptr);
        check(status == DDP_OK || status == DDP_ERROR_IO || status == DDP_ERROR_MISMATCH,
              "a save is refused for another reason than what is in it");
        check((note != nullptr) == (status == DDP_OK), "there is a note of no save");
        ddp_free(note);
        if (status == DDP_ERROR_MISMATCH)
            check(m == std::vector<float>(24, kUntouched), "a save that was refused is loaded");
        check(v[2] == kUntouched, "an element that nobody asked for is loaded");
    }

private:
    static void require(ddp_status status) {
        check(status == DDP_OK, "a call of the loader fails");
    }

    void add(const char* name, std::vector<std::int64_t> shape, ddp_dtype dtype) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name;
        desc.shape = shape.data();
        desc.ndim = static_cast<std::int32_t>(shape.size());
        desc.dtype = dtype;
        ddp_param param = -1;
        require(ddp_register_param(context_, &desc, &param, nullptr));
    }

    ddp_group* group_ = nullptr;
    ddp_context* context_ = nullptr;
    std::string folder_;
};

// As the library writes it.
std::string file_of(std::string_view header, std::string_view elements) {
    std::string text;
    for (Reader bytes(header); !bytes.empty();) {
        const char c = static_cast<char>(bytes.byte());
        if (c != '$') {
            text += c;
            continue;
        }
        if (static_cast<char>(bytes.byte()) != 'C' || elements.empty()) continue;
        std::string sum = libddp::str(std::hex, libddp::hash_of(elements.data(), elements.size()));
        text += sum.insert(0, 16 - sum.size(), '0');
    }
    const std::uint64_t length = text.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    return file.append(text).append(elements);
}

}  // namespace

DDP_FUZZ_TARGET(shard_state, input) {
    static Loader loader;
    Reader bytes(input);
    if ((bytes.byte() & 1) != 0) return loader.load(std::string(bytes.rest()));
    const std::string_view header = bytes.until('\0');
    loader.load(file_of(header, bytes.rest()));
}

}  // namespace fuzz::shard_state
