// XLA on a GPU, played on its CPU client: a call of compiled code goes on with buffers and a stream
// of the fake device (tests/support/fake_device), through a call frame of XLA's own header.
//
// The fake device's streams are late, and no processor can touch its memory. As XLA does, the player
// enqueues what computes the arguments, calls the function without waiting, and uses the memory for
// something else in the order of the stream: whoever reads it later finds NaNs, or none.
#include <xla/ffi/api/c_api.h>

#include <atomic>
#include <cstring>
#include <map>
#include <vector>

#include "support/fake_device/fake_device.h"

namespace {

XLA_FFI_Handler* handler = nullptr;
int streams_in_turn = 1;
std::atomic<long> calls{0};
std::atomic<long> traits{-1};  // that the function told, when it was asked

std::size_t bytes_of(const XLA_FFI_Buffer& buffer) {
    static const std::map<int, std::size_t> sizes{
        {XLA_FFI_DataType_U8, 1},  {XLA_FFI_DataType_F16, 2}, {XLA_FFI_DataType_BF16, 2},
        {XLA_FFI_DataType_S32, 4}, {XLA_FFI_DataType_F32, 4}, {XLA_FFI_DataType_S64, 8},
        {XLA_FFI_DataType_F64, 8}, {XLA_FFI_DataType_C64, 8}, {XLA_FFI_DataType_C128, 16}};
    std::size_t bytes = sizes.at(buffer.dtype);
    for (std::int64_t i = 0; i < buffer.rank; ++i)
        bytes *= static_cast<std::size_t>(buffer.dims[i]);
    return bytes;
}

// Streams of all calls in turn. They are never freed.
void* next_stream() {
    static std::vector<void*>& made = *new std::vector<void*>;
    const auto turn = static_cast<std::size_t>(calls.load() % streams_in_turn);
    while (made.size() <= turn) made.push_back(fake::make_stream(0));
    return made[turn];
}

XLA_FFI_Error* give_stream(XLA_FFI_Stream_Get_Args* args) {
    args->stream = args->ctx;  // this player's
    return nullptr;
}

struct Memory {
    void* host;
    std::size_t bytes;
    void* on_device;
};

// The buffers of one call on the device.
class Buffers {
public:
    explicit Buffers(void* stream) : stream_(stream) {}
    ~Buffers() {
        for (const Memory& memory : memory_) fake::release(memory.on_device);
    }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;

    XLA_FFI_Buffer* add(void* described) {
        XLA_FFI_Buffer buffer = *static_cast<XLA_FFI_Buffer*>(described);
        const std::size_t bytes = bytes_of(buffer);
        void* on_device = nullptr;
        for (const Memory& memory : memory_)
            if (memory.host == buffer.data && bytes > 0) on_device = memory.on_device;
        if (!on_device) {
            on_device = fake::allocate(0, bytes + 1);
            memory_.push_back({buffer.data, bytes, on_device});
        }
        buffer.data = on_device;
        return new XLA_FFI_Buffer(buffer);
    }
    void compute(const XLA_FFI_Buffer& buffer) const {
        const Memory memory = of(buffer);
        fake::launch(0, stream_, [memory] {
            std::memcpy(fake::alias(memory.on_device), memory.host, memory.bytes);
        });
    }
    void read(const XLA_FFI_Buffer& buffer) const {
        const Memory memory = of(buffer);
        fake::launch(0, stream_, [memory] {
            std::memcpy(memory.host, fake::alias(memory.on_device), memory.bytes);
        });
    }
    void spoil() const {
        for (const Memory& memory : memory_)
            fake::launch(0, stream_, [memory] {
                std::memset(fake::alias(memory.on_device), 0xff, memory.bytes);
            });
    }

private:
    Memory of(const XLA_FFI_Buffer& buffer) const {
        for (const Memory& memory : memory_)
            if (memory.on_device == buffer.data) return memory;
        return {};
    }

    void* const stream_;
    std::vector<Memory> memory_;
};

}  // namespace

extern "C" {

void played_xla(void* function, int streams) {
    handler = reinterpret_cast<XLA_FFI_Handler*>(function);
    streams_in_turn = streams;
}
long played_calls() {
    return calls;
}
long played_traits() {
    return traits;
}

XLA_FFI_Error* played_call(XLA_FFI_CallFrame* frame) {
    if (frame->extension_start || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) {
        XLA_FFI_Error* const error = handler(frame);
        for (auto* each = frame->extension_start; each; each = each->next)
            if (each->type == XLA_FFI_Extension_Metadata)
                traits = reinterpret_cast<XLA_FFI_Metadata_Extension*>(each)->metadata->traits;
        return error;
    }
    void* const stream = next_stream();
    ++calls;
    Buffers buffers(stream);
    std::vector<void*> arguments, results;
    for (std::int64_t i = 0; i < frame->args.size; ++i)
        arguments.push_back(buffers.add(frame->args.args[i]));
    for (std::int64_t i = 0; i < frame->rets.size; ++i)
        results.push_back(buffers.add(frame->rets.rets[i]));
    for (void* each : arguments) buffers.compute(*static_cast<XLA_FFI_Buffer*>(each));

    XLA_FFI_Api api = *frame->api;
    api.XLA_FFI_Stream_Get = give_stream;
    XLA_FFI_CallFrame on_gpu = *frame;
    on_gpu.api = &api;
    on_gpu.ctx = static_cast<XLA_FFI_ExecutionContext*>(stream);
    on_gpu.args.args = arguments.data();
    on_gpu.rets.rets = results.data();
    XLA_FFI_Error* const error = handler(&on_gpu);

    for (void* each : results) buffers.read(*static_cast<XLA_FFI_Buffer*>(each));
    buffers.spoil();
    fake::wait(0, stream);
    for (auto* list : {&arguments, &results})
        for (void* each : *list) delete static_cast<XLA_FFI_Buffer*>(each);
    return error;
}

}  // extern "C"
