// The fake devices as a module: every operation is put on its stream and works there through the
// second mapping.
#include "util/module.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/device_module.h"
#include "kernels/arithmetic.h"
#include "kernels/codec.h"
#include "kernels/device_kernels.h"
#include "kernels/dtype.h"
#include "support/fake_device/fake_device.h"
#include "support/fake_device/low_rank.h"
#include "support/fake_device/memory.h"
#include "support/fake_device/stream.h"
#include "support/fake_device/training.h"

using namespace fake;

namespace {

std::atomic<int> devices{2};
std::atomic<std::uint64_t> copied{0};
std::atomic<bool> held{false};

// The memory that libddp has, in the order of its calls.
class Had {
public:
    void allocate(void* memory, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        sizes_[memory] = bytes;
        now_ += bytes;
        most_ = std::max(most_, now_);
    }
    void free(void* memory) {
        const std::lock_guard lock(mutex_);
        now_ -= sizes_[memory];
    }
    std::size_t most() {
        const std::lock_guard lock(mutex_);
        return std::exchange(most_, now_);
    }

private:
    std::mutex mutex_;
    std::map<void*, std::size_t> sizes_;
    std::size_t now_ = 0, most_ = 0;
} had;

ddp_status set_failure(ddp_device_failure* failure, ddp_status status, const char* text) {
    std::snprintf(failure->message, sizeof failure->message, "%s", text);
    return status;
}

ddp_status count(int32_t* result, ddp_device_failure* failure) {
    if (devices == 0)
        return set_failure(failure, DDP_ERROR_UNAVAILABLE, "no device: the test took them away");
    *result = devices;
    return DDP_OK;
}

ddp_status device_of(const void* pointer, ddp_device* device, ddp_device_failure*) {
    const int index = Memory::instance().device_of(pointer);
    *device = index < 0 ? ddp_device{DDP_DEVICE_CPU, 0} : ddp_device{DDP_DEVICE_CUDA, index};
    return DDP_OK;
}

ddp_status prepare(int32_t, ddp_device_failure*) {
    return DDP_OK;
}

ddp_status allocate(int32_t device, void* stream, size_t bytes, void** memory,
                    ddp_device_failure* failure) {
    *memory = Memory::instance().allocate(device, bytes);
    if (!*memory) return set_failure(failure, DDP_ERROR_OUT_OF_MEMORY, "the device is full");
    had.allocate(*memory, bytes);
    Stream::of(device, stream)->enqueue([device, begin = *memory, bytes] {
        std::memset(Memory::instance().alias(device, begin, bytes), 0, bytes);
    });
    return DDP_OK;
}

void deallocate(int32_t device, void* stream, void* memory) {
    had.free(memory);
    const auto free = [memory] { Memory::instance().free(memory); };
    const auto of_device = Stream::of(device, stream);
    if (const auto capture = of_device->capture())
        capture->at_end(free);  // each launch of the graph uses it
    else
        of_device->enqueue(free);
}

ddp_status allocate_host(size_t bytes, void** memory, ddp_device_failure* failure) {
    *memory = Memory::instance().allocate_pinned(bytes);
    return *memory ? DDP_OK : set_failure(failure, DDP_ERROR_OUT_OF_MEMORY, "no pinned memory");
}

void deallocate_host(void* memory) {
    Memory::instance().free_pinned(memory);
}

ddp_status stream_create(int32_t device, void** stream, ddp_device_failure*) {
    *stream = Stream::make(device);
    return DDP_OK;
}

void stream_destroy(int32_t, void* stream) {
    Stream::free(stream);
}

ddp_status stream_capture(int32_t device, void* stream, uint64_t* capture, ddp_device_failure*) {
    const auto captured = Stream::of(device, stream)->capture();
    *capture = captured ? captured->id() : 0;
    return DDP_OK;
}

ddp_status capture_keep(int32_t device, void* stream, void* kept, void (*release)(void*),
                        ddp_device_failure*) {
    Stream::of(device, stream)->capture()->at_end([=] { release(kept); });
    return DDP_OK;
}

ddp_status event_create(int32_t device, void** event, ddp_device_failure*) {
    *event = new Event(device);
    return DDP_OK;
}

void event_destroy(int32_t, void* event) {
    delete static_cast<Event*>(event);
}

ddp_status event_record(int32_t device, void* event, void* stream, ddp_device_failure*) {
    if (static_cast<Event*>(event)->device != device)
        die("an event is recorded on a stream of another device");
    Stream::of(device, stream)->record(*static_cast<Event*>(event));
    return DDP_OK;
}

ddp_status stream_wait(int32_t device, void* stream, void* event, ddp_device_failure*) {
    if (!Stream::of(device, stream)->wait_for(*static_cast<Event*>(event)))
        die("a stream that is captured waits for what is not, or for another capture");
    return DDP_OK;
}

std::shared_ptr<Point> point_of(void* event) {
    if (static_cast<Event*>(event)->captured()) die("the host asks for an event of a capture");
    return static_cast<Event*>(event)->last();
}

ddp_status event_query(int32_t, void* event, int32_t* done, ddp_device_failure*) {
    held.wait(true);
    const auto point = point_of(event);
    *done = !point || point->done() ? 1 : 0;
    return DDP_OK;
}

ddp_status event_wait(int32_t, void* event, int64_t timeout_ns, int32_t* done,
                      ddp_device_failure*) {
    const auto point = point_of(event);
    *done = !point || point->wait(std::chrono::nanoseconds(timeout_ns)) ? 1 : 0;
    return DDP_OK;
}

ddp_status spoil(int32_t device, void* stream, void* memory, size_t bytes, const uint32_t* spoiled,
                 ddp_device_failure*) {
    Stream::of(device, stream)->enqueue([=] {
        if (__atomic_load_n(spoiled, __ATOMIC_ACQUIRE) != 0)
            std::memset(Memory::instance().alias(device, memory, bytes), 0xff, bytes);
    });
    return DDP_OK;
}

// As a kernel would: in the wider of the two types, and rounded once more where that is not the
// result's.
void transfer_one(int32_t device, const ddp_segment& s, ddp_dtype from, ddp_dtype to,
                  double scale) {
    const size_t from_bytes = s.count * libddp::dtype_size(from),
                 to_bytes = s.count * libddp::dtype_size(to);
    char* dst = Memory::instance().alias(device, s.dst, to_bytes);
    if (!s.src) {
        std::memset(dst, 0, to_bytes);
        return;
    }
    const char* src = Memory::instance().alias(device, s.src, from_bytes);
    if (from == to) return libddp::cpu::scale_copy(dst, src, s.count, to, scale);
    if (from_bytes < to_bytes) {
        libddp::cpu::convert(dst, to, src, from, s.count);
        return libddp::cpu::scale_copy(dst, dst, s.count, to, scale);
    }
    std::vector<char> scaled(from_bytes);
    libddp::cpu::scale_copy(scaled.data(), src, s.count, from, scale);
    libddp::cpu::convert(dst, to, scaled.data(), from, s.count);
}

ddp_status transfer(int32_t device, void* stream, const ddp_segment* segments, size_t n,
                    ddp_dtype from, ddp_dtype to, double scale, ddp_device_failure*) {
    Stream::of(device, stream)
        ->enqueue(
            [device, all = std::vector<ddp_segment>(segments, segments + n), from, to, scale] {
                for (const auto& segment : all) transfer_one(device, segment, from, to, scale);
            });
    return DDP_OK;
}

ddp_status reduce(int32_t device, void* stream, void* out, const void* const* inputs,
                  size_t input_count, size_t n, ddp_dtype dtype, ddp_reduce_op op, double scale,
                  ddp_device_failure*) {
    Stream::of(device, stream)
        ->enqueue([device, out, all = std::vector<const void*>(inputs, inputs + input_count), n,
                   dtype, op, scale] {
            const size_t bytes = n * libddp::dtype_size(dtype);
            std::vector<const void*> seen;
            for (const void* input : all)
                seen.push_back(Memory::instance().alias(device, input, bytes));
            libddp::cpu::reduce(Memory::instance().alias(device, out, bytes), seen.data(),
                                seen.size(), n, dtype, op, scale);
        });
    return DDP_OK;
}

// Enqueues work(batch) on a batch whose memory can be touched.
template <class Work>
ddp_status enqueue_batch(int32_t device, void* stream, const ddp_codec_batch& told, Work work) {
    Stream::of(device, stream)
        ->enqueue([device, work, batch = told,
                   parts = std::vector<ddp_codec_part>(told.parts, told.parts + told.part_count),
                   places = told.places ? std::vector<ddp_codec_place>(
                                              told.places, told.places + told.part_count)
                                        : std::vector<ddp_codec_place>()]() mutable {
            const auto seen = [device](void* memory, size_t bytes) -> void* {
                return memory ? Memory::instance().alias(device, memory, bytes) : nullptr;
            };
            const size_t item = libddp::dtype_size(batch.dtype);
            const size_t real = libddp::dtype_size(libddp::compute_dtype(batch.dtype));
            for (auto& part : parts) {
                part.gradient = seen(part.gradient, part.count * item);
                part.residual = seen(part.residual, part.count * real);
            }
            for (size_t i = 0; i < places.size(); ++i)
                places[i].loss = seen(places[i].loss, parts[i].count * real);
            batch.parts = parts.data();
            batch.places = places.data();
            if (!parts.empty())
                batch.sent = seen(
                    batch.sent, parts.back().packed + libddp::packed_size(batch.codec, batch.dtype,
                                                                          parts.back().count));
            batch.gathered = seen(batch.gathered, batch.size * static_cast<size_t>(batch.world));
            batch.scratch = seen(batch.scratch, libddp::cpu::encode_scratch(batch));
            work(batch);
        });
    return DDP_OK;
}

size_t encode_scratch(const ddp_codec_batch* batch) {
    return libddp::cpu::encode_scratch(*batch);
}

ddp_status encode(int32_t device, void* stream, const ddp_codec_batch* batch, ddp_device_failure*) {
    return enqueue_batch(device, stream, *batch,
                         [](const ddp_codec_batch& seen) { libddp::cpu::encode(seen); });
}

ddp_status decode(int32_t device, void* stream, const ddp_codec_batch* batch, double scale,
                  ddp_device_failure*) {
    return enqueue_batch(device, stream, *batch, [scale](const ddp_codec_batch& seen) {
        libddp::cpu::decode(seen, scale);
    });
}

ddp_status recode(int32_t device, void* stream, const ddp_codec_batch* batch, double scale,
                  ddp_device_failure*) {
    return enqueue_batch(device, stream, *batch, [scale](const ddp_codec_batch& seen) {
        libddp::cpu::recode(seen, scale);
    });
}

ddp_status copy(int32_t device, void* stream, void* dst, const void* src, size_t bytes,
                ddp_copy_kind kind, ddp_device_failure*) {
    copied += bytes;
    Stream::of(device, stream)->enqueue([device, dst, src, bytes, kind] {
        auto& memory = Memory::instance();
        memory.require_pinned(kind == DDP_COPY_TO_HOST ? dst : src, bytes);
        if (kind == DDP_COPY_TO_HOST)
            std::memcpy(dst, memory.alias(device, src, bytes), bytes);
        else
            std::memcpy(memory.alias(device, dst, bytes), src, bytes);
    });
    return DDP_OK;
}

}  // namespace

namespace fake {

Counts counts() {
    return {stream_count(), event_count(), Memory::instance().blocks(),
            Memory::instance().pinned()};
}

std::uint64_t copied_bytes() {
    return copied;
}

void set_allocations_left(int device, long count) {
    Memory::instance().set_allocations_left(device, count);
}
std::size_t live_bytes() {
    return Memory::instance().live_bytes();
}
std::size_t most_bytes() {
    return had.most();
}

long pinned_allocations() {
    return Memory::instance().pinned_allocations();
}

bool settle() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!Stream::all_idle()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

void hold_queries(bool hold) {
    held = hold;
    held.notify_all();
}

void set_device_count(int n) {
    devices = n;
}
void set_delay(long most_us) {
    set_longest_delay(most_us);
}
void* make_stream(int device) {
    return Stream::make(device);
}
void free_stream(void* stream) {
    Stream::free(stream);
}
void launch(int device, void* stream, std::function<void()> body) {
    Stream::of(device, stream)->enqueue(std::move(body));
}
void wait(int device, void* stream) {
    const auto waited_for = Stream::of(device, stream);
    if (waited_for->capture()) die("the host waits for a stream that is being captured");
    waited_for->synchronize();
}
std::shared_ptr<Event> record(int device, void* stream) {
    auto event = std::make_shared<Event>(device);
    Stream::of(device, stream)->record(*event);
    return event;
}
void wait_for(const std::shared_ptr<Event>& event, int device, void* stream) {
    if (!Stream::of(device, stream)->wait_for(*event))
        die("a stream that is captured waits for what is not, or for another capture");
}
bool done(const std::shared_ptr<Event>& event) {
    return point_of(event.get())->done();
}
void wait(const std::shared_ptr<Event>& event) {
    point_of(event.get())->wait();
}
bool keep_in_capture(int device, void* stream, std::function<void()> last) {
    const auto capture = Stream::of(device, stream)->capture();
    if (capture) capture->at_end(std::move(last));
    return static_cast<bool>(capture);
}
void begin_capture(void* stream) {
    static_cast<Stream*>(stream)->begin_capture();
}
std::shared_ptr<Capture> end_capture(void* stream) {
    return static_cast<Stream*>(stream)->end_capture();
}
void launch(const std::shared_ptr<Capture>& graph, void* stream) {
    static_cast<Stream*>(stream)->launch(graph);
}
void* alias(const void* memory) {
    return Memory::instance().alias(memory);
}
void* allocate(int device, std::size_t bytes) {
    void* memory = Memory::instance().allocate(device, bytes);
    if (!memory) die("the device is full");
    std::memset(alias(memory), 0, bytes);
    return memory;
}
void release(void* memory) {
    Memory::instance().free(memory);
}

}  // namespace fake

extern "C" __attribute__((visibility("default"))) const ddp_device_module* ddp_device_entry(void) {
    static const ddp_device_module module = {sizeof(ddp_device_module),
                                             libddp::build_identity(),
                                             "cuda",
                                             DDP_DEVICE_CUDA,
                                             0,
                                             count,
                                             device_of,
                                             allocate,
                                             deallocate,
                                             allocate_host,
                                             deallocate_host,
                                             stream_create,
                                             stream_destroy,
                                             stream_capture,
                                             capture_keep,
                                             event_create,
                                             event_destroy,
                                             event_record,
                                             stream_wait,
                                             event_query,
                                             event_wait,
                                             copy};
    return &module;
}

extern "C" __attribute__((visibility("default"))) const ddp_device_kernels* ddp_kernels_entry(
    void) {
    static const ddp_device_kernels kernels = {sizeof(ddp_device_kernels),
                                               prepare,
                                               transfer,
                                               reduce,
                                               encode_scratch,
                                               encode,
                                               decode,
                                               recode,
                                               fake::low_rank,
                                               fake::thin,
                                               fake::leave_out,
                                               spoil,
                                               fake::norm_terms,
                                               fake::update};
    return &kernels;
}
