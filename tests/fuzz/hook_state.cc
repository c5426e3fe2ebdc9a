// The state of a hook, of a file. The first byte chooses the hook, the next the form of the input:
// the file as it is; or its header up to a NUL, in which $B and $C stand for the number of bytes
// and the checksum of what follows, so that these are right.
#include <cstring>
#include <memory>
#include <vector>

#include "ddp/ddp.h"
#include "fuzz/target.h"
#include "util/hash.h"

namespace fuzz::hook_state {
namespace {

struct Kind {
    const char *name, *options;
};

constexpr Kind kinds[] = {{"powersgd", "start=0,rank=2,min_rate=0.1"},
                          {"batched_powersgd", "start=0,rank=2,min_rate=0.1"},
                          {"onebit", "min_elements=0,block=8"},
                          {"topk", "min_elements=0,ratio=0.3"},
                          {"fp16(powersgd)", "start=1,rank=1,min_rate=0.1"},
                          {"post_local_sgd", "start=3"},
                          {"allreduce", ""},
                          {"chunks", "chunk=4,ratio=0.3,momentum=0.5,warmup=2"}};

// A context with one of the hooks, on a group of its own that a step may break.
class Trainer {
public:
    explicit Trainer(const Kind& kind) {
        ddp_group_options options;
        ddp_group_options_init(&options);
        options.rank = 0;
        options.world_size = 1;
        options.timeout_ms = 5000;
        require(ddp_group_create(&options, &group_, nullptr));
        require(ddp_context_create(group_, nullptr, &context_, nullptr));
        add("a", {4, 6}, DDP_F32);
        add("b", {3}, DDP_F32);
        add("c", {8, 2}, DDP_F64);
        add("d", {5, 5}, DDP_F16);
        add("e", {2}, DDP_I64);
        require(ddp_commit(context_, nullptr));
        require(ddp_use_hook(context_, kind.name, kind.options, nullptr));
        require(step());
    }
    ~Trainer() {
        ddp_context_free(context_);
        ddp_group_free(group_);
    }
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    bool load(const std::string& file, std::uint32_t flags) {
        const ddp_status status =
            ddp_hook_state_load(context_, file.data(), file.size(), flags, nullptr);
        check(status == DDP_OK || status == DDP_ERROR_INVALID_ARGUMENT ||
                  status == DDP_ERROR_UNSUPPORTED,
              "a state is refused for another reason than what is in it");
        return status == DDP_OK;
    }
    std::string save() {
        void* data = nullptr;
        std::size_t size = 0;
        require(ddp_hook_state_save(context_, &data, &size, nullptr));
        std::string file(static_cast<const char*>(data), size);
        ddp_free(data);
        return file;
    }
    ddp_status step() {
        for (ddp_param param = 0; param < count_; ++param)
            require(ddp_grad_ready(context_, param, nullptr));
        return ddp_finalize(context_, nullptr);
    }

private:
    static void require(ddp_status status) {
        check(status == DDP_OK, "a call of the trainer fails");
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
        count_ = param + 1;
    }

    ddp_group* group_ = nullptr;
    ddp_context* context_ = nullptr;
    ddp_param count_ = 0;
};

// As the library writes it.
std::string file_of(std::string_view header, std::string_view data) {
    std::string text;
    for (Reader bytes(header); !bytes.empty();) {
        const char c = static_cast<char>(bytes.byte());
        if (c != '$') {
            text += c;
            continue;
        }
        const char what = static_cast<char>(bytes.byte());
        if (what == 'B') text += std::to_string(data.size());
        if (what == 'C') text += libddp::str(std::hex, libddp::Hash().add(data).value());
    }
    const std::uint64_t length = text.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    return file.append(text).append(data);
}

}  // namespace

DDP_FUZZ_TARGET(hook_state, input) {
    static std::unique_ptr<Trainer> trainers[std::size(kinds)];
    Reader bytes(input);
    const std::size_t which = bytes.below(std::size(kinds));
    auto& trainer = trainers[which];
    if (!trainer) trainer = std::make_unique<Trainer>(kinds[which]);
    const std::uint8_t form = bytes.byte();
    std::string file;
    if ((form & 1) != 0) {
        file = bytes.rest();
    } else {
        const std::string_view header = bytes.until('\0');
        file = file_of(header, bytes.rest());
    }
    if (!trainer->load(file, form >> 1 & 3)) return;
    check(trainer->step() == DDP_OK, "a step fails after a state was loaded");
    if ((form & 8) != 0)
        check(trainer->load(trainer->save(), 0), "a hook does not load what it has saved");
}

}  // namespace fuzz::hook_state
