// A kind of device that is made of threads and of memory that only its own operations can touch:
// libddp-cuda.so of the tests.
//
// Streams are threads that run one operation after another, each after a random time. The addresses
// of its memory cannot be read or written (PROT_NONE); operations work through a second mapping of
// the same pages. So a library that touches device memory by itself faults, and one that forgets an
// order computes with what is not there yet: fresh and freed memory holds NaNs. Operations check
// that their memory is alive, and of their device; what is wrong ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace fake {

struct Counts {
    long streams = 0, events = 0, blocks = 0, pinned = 0;

    bool operator==(const Counts&) const = default;
};
// The objects that are alive now. An object that is freed in the order of a stream counts until the
// stream has come to it: see settle().
Counts counts();
// Bytes of the memory that is alive on all devices.
std::size_t live_bytes();
// The most bytes that libddp has had at a time since the last call, in the order of streams: what is
// freed in the order of a stream can be used again by what is allocated in that order.
std::size_t most_bytes();
// How often pinned memory was allocated, ever.
long pinned_allocations();
// Waits until every stream has nothing to do, at most 10 s; false if that takes longer.
bool settle();

// This device has memory for so many allocations more; -1 (at first): as long as there is room.
void set_allocations_left(int device, long count);

// How many bytes were to be copied between devices and the host, ever.
std::uint64_t copied_bytes();

// There are so many devices (2 at first); none: the module says that there is no device.
void set_device_count(int count);
// While they are held, nobody learns from the devices whether an event is over: the call returns
// when they are not any more. CUDA does that while another thread allocates memory and waits for a
// kernel.
void hold_queries(bool held);
// Longest time before each operation (100 us at first).
void set_delay(long most_us);

// Streams of the caller's own; null is the default stream of every device.
void* make_stream(int device);
void free_stream(void* stream);
// Runs on the stream; what it does to device memory it does through alias().
void launch(int device, void* stream, std::function<void()> body);
void wait(int device, void* stream);
// A place in a stream, which others wait for.
struct Event;
std::shared_ptr<Event> record(int device, void* stream);
void wait_for(const std::shared_ptr<Event>& event, int device, void* stream);
bool done(const std::shared_ptr<Event>& event);
void wait(const std::shared_ptr<Event>& event);

// From begin_capture() on, work that is enqueued on a stream of the caller's becomes part of a graph,
// as with CUDA. end_capture: null if a stream that was captured with this one did not come back to it.
class Capture;
// False: the stream is not being captured. Otherwise `last` is called when nobody has the graph.
bool keep_in_capture(int device, void* stream, std::function<void()> last);
void begin_capture(void* stream);
std::shared_ptr<Capture> end_capture(void* stream);
void launch(const std::shared_ptr<Capture>& graph, void* stream);

// Where the device sees this memory.
void* alias(const void* memory);
template <class T>
T* at(const void* memory) {
    return static_cast<T*>(alias(memory));
}

// Memory of the caller's own. It holds zeros.
void* allocate(int device, std::size_t bytes);
void release(void* memory);

}  // namespace fake
