#include "comm/device_path.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "util/log.h"
#include "util/mutex.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

// Bytes of a chunk in pinned memory. Small enough that copies overlap with the backend already in a
// bucket of the usual size, large enough that the start of a copy costs little.
constexpr std::size_t kChunkBytes = std::size_t{2} << 20;

// Often enough for errors and memory; a step takes about as long.
constexpr std::chrono::milliseconds kInterval{10}, kSoon{1};
// Between two looks at the clock, for calls that do not return.
constexpr std::chrono::milliseconds kTick{100};
// How much longer than the operation's own timeout a backend may take to enqueue it: it knows best
// why that takes long.
constexpr std::int64_t kEnqueueMs = 1000;
// How long a group that is freed waits for the device's answer.
constexpr std::chrono::milliseconds kAnswer{1000};

// A device that has failed does nothing more.
bool ended(const EventPtr& event) {
    try {
        return event->done();
    } catch (const Error&) {
        return true;
    }
}

}  // namespace

struct StreamWatch::Shared {
    // A function of the device's or of the backend's that a thread is inside.
    struct Call {
        Deadline deadline;
        std::int64_t allowed_ms = 0;
        Signature what{};
    };
    using Calls = std::list<Call>;

    Calls::iterator begin_call(std::int64_t allowed_ms, const Signature& what) DDP_REQUIRES(mutex) {
        return calls.insert(calls.end(), {Deadline::after_ms(allowed_ms), allowed_ms, what});
    }
    bool idle() const DDP_REQUIRES(mutex) { return entries.empty() && calls.empty(); }

    void ask_until_stopped();
    // Both let go of the lock meanwhile.
    void ask(Lock& lock) DDP_REQUIRES(mutex) DDP_UNCHECKED_LOCKS;
    ErrorInfo look(const std::vector<std::shared_ptr<Entry>>& running, Signature& what) const;
    void watch_time_until_stopped();
    void report(Lock& lock, ErrorInfo error, const Signature& what)
        DDP_REQUIRES(mutex) DDP_UNCHECKED_LOCKS;

    std::function<void()> check;
    std::function<void(const ErrorInfo&, const Signature&)> fail;
    Mutex mutex;  // nobody calls the device with it
    Condition to_ask, to_time, answered;
    std::deque<std::shared_ptr<Entry>> entries DDP_GUARDED_BY(mutex);
    Calls calls DDP_GUARDED_BY(mutex);
    int draining DDP_GUARDED_BY(mutex) = 0;  // threads that want to know soon
    bool asking DDP_GUARDED_BY(mutex) = false;
    bool checking DDP_GUARDED_BY(mutex) = true;
    bool stopping DDP_GUARDED_BY(mutex) = false;
    bool asker_ended DDP_GUARDED_BY(mutex) = false;
};

StreamWatch::StreamWatch(std::function<void()> check,
                         std::function<void(const ErrorInfo&, const Signature&)> fail)
    : shared_(std::make_shared<Shared>()) {
    shared_->check = std::move(check);
    shared_->fail = std::move(fail);
    timer_ = quiet_thread([shared = shared_] { shared->watch_time_until_stopped(); });
    try {
        asker_ = quiet_thread([shared = shared_] { shared->ask_until_stopped(); });
    } catch (...) {
        {
            const Lock lock(shared_->mutex);
            shared_->asker_ended = true;
        }
        stop();
        throw;
    }
}

StreamWatch::~StreamWatch() {
    stop();
}

bool StreamWatch::stop() {
    Lock lock(shared_->mutex);
    if (std::exchange(shared_->stopping, true)) return shared_->asker_ended;
    shared_->to_ask.notify_all();
    shared_->to_time.notify_all();
    const bool answered = shared_->answered.wait_until(
        lock, std::chrono::steady_clock::now() + kAnswer,
        [&]() DDP_REQUIRES(shared_->mutex) { return shared_->asker_ended; });
    auto left = std::exchange(shared_->entries, {});
    lock.unlock();
    timer_.join();
    if (asker_.joinable() && answered)
        asker_.join();
    else if (asker_.joinable())
        asker_.detach();
    if (!left.empty()) {
        log(LogLevel::kWarn, left.size(),
            " operations on a device did not end when their group was freed; their memory is not "
            "freed");
        new auto(std::move(left));  // NOLINT: a kernel may still write there
    }
    return answered;
}

void StreamWatch::enqueue(Entry entry, const std::function<void(Entry&)>& call) {
    const auto added = std::make_shared<Entry>(std::move(entry));
    Lock lock(shared_->mutex);
    if (shared_->idle()) shared_->to_time.notify_all();
    const auto inside = shared_->begin_call(added->timeout_ms + kEnqueueMs, added->what);
    lock.unlock();
    try {
        call(*added);
    } catch (...) {
        lock.lock();
        shared_->calls.erase(inside);
        throw;
    }
    lock.lock();
    shared_->calls.erase(inside);
    if (shared_->entries.empty()) shared_->to_ask.notify_all();
    shared_->entries.push_back(added);
}

bool StreamWatch::drain(const Deadline& deadline) {
    Lock lock(shared_->mutex);
    ++shared_->draining;
    shared_->to_ask.notify_all();
    shared_->answered.wait_until(lock, deadline.at(), [&]() DDP_REQUIRES(shared_->mutex) {
        return shared_->entries.empty() && !shared_->asking;
    });
    --shared_->draining;
    return shared_->entries.empty();  // the memory of the last ones may still be on its way
}

void StreamWatch::stop_checking() {
    const Lock lock(shared_->mutex);
    shared_->checking = false;
}

bool StreamWatch::on_own_thread() const {
    return std::this_thread::get_id() == asker_.get_id() ||
           std::this_thread::get_id() == timer_.get_id();
}

void StreamWatch::Shared::ask_until_stopped() {
    Lock lock(mutex);
    while (!stopping) {
        if (entries.empty())
            to_ask.wait(lock);
        else if (to_ask.wait_for(lock, draining > 0 ? kSoon : kInterval); !stopping)
            ask(lock);
    }
    asker_ended = true;
    answered.notify_all();
}

// Without the lock the device is asked, and memory is freed, which may wait for a device.
void StreamWatch::Shared::ask(Lock& lock) {
    std::vector<std::shared_ptr<Entry>> asked(entries.begin(), entries.end());
    const bool checked = checking;
    const auto inside = begin_call(asked.front()->timeout_ms, asked.front()->what);
    asking = true;
    lock.unlock();

    std::vector<std::shared_ptr<Entry>> running, over;
    for (const auto& entry : asked) (ended(entry->end) ? over : running).push_back(entry);
    ErrorInfo error;
    Signature what{};
    if (checked && !running.empty()) error = look(running, what);

    lock.lock();
    std::erase_if(entries, [&](const auto& entry) {
        return std::find(over.begin(), over.end(), entry) != over.end();
    });
    asked.clear();
    running.clear();
    while (!over.empty()) {  // each has its time
        inside->deadline = Deadline::after_ms(inside->allowed_ms);
        lock.unlock();
        over.pop_back();
        lock.lock();
    }
    calls.erase(inside);
    asking = false;
    answered.notify_all();
    if (!error.ok()) report(lock, error, what);
}

// The backend's error comes first: it knows more than that time has passed.
ErrorInfo StreamWatch::Shared::look(const std::vector<std::shared_ptr<Entry>>& running,
                                    Signature& what) const {
    what = running.front()->what;
    try {
        check();
        for (const auto& entry : running) {
            if (!entry->deadline && entry->begin->done())
                entry->deadline = Deadline::after_ms(entry->timeout_ms);
            if (!entry->deadline || !entry->deadline->expired()) continue;
            what = entry->what;
            return {DDP_ERROR_TIMEOUT, str("an operation on the device did not end within ",
                                           entry->timeout_ms, " ms")};
        }
    } catch (const Error& error) {
        return error.info();
    }
    return {};
}

void StreamWatch::Shared::watch_time_until_stopped() {
    Lock lock(mutex);
    while (!stopping) {
        if (idle() || !checking)
            to_time.wait(lock);
        else
            to_time.wait_for(lock, kTick);
        const auto late = std::find_if(calls.begin(), calls.end(),
                                       [](const Call& call) { return call.deadline.expired(); });
        if (stopping || late == calls.end()) continue;
        report(lock,
               {DDP_ERROR_TIMEOUT, str("the device did not answer within ", late->allowed_ms,
                                       " ms; a thread of this process may be allocating memory, "
                                       "which can wait for kernels")},
               Signature(late->what));
    }
}

void StreamWatch::Shared::report(Lock& lock, ErrorInfo error, const Signature& what) {
    if (stopping || !std::exchange(checking, false)) return;
    lock.unlock();
    error.bucket = what.bucket;
    error.step = what.step;
    fail(error, what);
    lock.lock();
}

// Collectives of a backend that takes host memory only, on device memory: chunk after chunk is
// copied to pinned memory, reduced there, and copied back, so that copies in both directions and
// the backend work at the same time.
class DevicePath::HostRelay {
public:
    // down: the stream on which data comes to the host. look: throws when the group is broken.
    HostRelay(StreamPtr down, Transport& host, std::int32_t rank, std::int32_t world,
              std::function<void()> look);
    ~HostRelay();
    HostRelay(const HostRelay&) = delete;
    HostRelay& operator=(const HostRelay&) = delete;

    // Returns when the backend is done and the rest is enqueued on up(). Ranks cut alike.
    void run(const ddp_collective& collective);
    // The stream on which results go back to the device.
    const DeviceStream& up() const { return *up_; }

private:
    struct Pinned {
        std::shared_ptr<std::byte> memory;
        std::size_t bytes = 0;
        EventPtr fetched;  // the chunk has come to the host
        EventPtr free;     // its result is back on the device
    };
    // How a collective is cut: which part of each piece of the input and the output a chunk is.
    struct Cut;

    void make_room(const Cut& cut);
    void fetch(const Cut& cut, std::size_t chunk);
    void reduce(const Cut& cut, std::size_t chunk);
    void give_back(const Cut& cut, std::size_t chunk);
    void wait_for(const Cut& cut, const DeviceEvent& event) const;
    Pinned& pinned(std::size_t chunk) { return pinned_[chunk % pinned_.size()]; }

    const StreamPtr down_, up_;
    Transport& host_;
    const std::size_t rank_, world_;
    const std::function<void()> look_;
    std::array<Pinned, 3> pinned_;
};

// A collective's input is `in` pieces and its output `out` pieces of `count` elements, one after
// another; each chunk takes the same `step` elements of every piece. In pinned memory the input
// stands first. The output takes its place if they are alike.
struct DevicePath::HostRelay::Cut {
    Cut(const ddp_collective& op, std::size_t rank, std::size_t world)
        : collective(op), item(dtype_size(op.dtype)), deadline(Deadline::after_ms(op.timeout_ms)) {
        switch (op.kind) {
            case DDP_COLLECTIVE_ALLGATHER:
                out = world;
                own = rank;  // where this rank's input stands in the output
                break;
            case DDP_COLLECTIVE_REDUCE_SCATTER:
                in = world;
                break;
            case DDP_COLLECTIVE_BROADCAST:
                (static_cast<std::size_t>(op.root) == rank ? out : in) = 0;
                break;
            case DDP_COLLECTIVE_BARRIER:
                in = out = 0;
                break;
            default:
                break;
        }
        step = std::max<std::size_t>(kChunkBytes / item / std::max({in, out, std::size_t{1}}), 1);
        step = std::min(step, std::max<std::size_t>(op.count, 1));
    }

    std::size_t chunks() const {
        return std::max<std::size_t>((collective.count + step - 1) / step, 1);
    }
    std::size_t begin(std::size_t chunk) const { return chunk * step; }
    std::size_t size(std::size_t chunk) const {
        return std::min(step, collective.count - begin(chunk));
    }
    std::size_t bytes() const {
        return step * item * (in > 1 ? in + out : std::max({in, out, std::size_t{1}}));
    }
    // Where the output stands in pinned memory, in elements.
    std::size_t output(std::size_t chunk) const { return in > 1 ? in * size(chunk) : 0; }
    // Where a chunk's part of a piece stands in device memory.
    std::size_t offset(std::size_t piece, std::size_t chunk) const {
        return (piece * collective.count + begin(chunk)) * item;
    }

    const ddp_collective& collective;
    const std::size_t item;
    const Deadline deadline;
    std::size_t in = 1, out = 1, own = 0;
    std::size_t step = 0;
};

DevicePath::HostRelay::HostRelay(StreamPtr down, Transport& host, std::int32_t rank,
                                 std::int32_t world, std::function<void()> look)
    : down_(std::move(down)),
      up_(on_device::make_stream(down_->device())),
      host_(host),
      rank_(static_cast<std::size_t>(rank)),
      world_(static_cast<std::size_t>(world)),
      look_(std::move(look)) {}

DevicePath::HostRelay::~HostRelay() {
    for (Pinned& buffer : pinned_) {
        release_after(buffer.memory, buffer.fetched);
        release_after(std::move(buffer.memory), buffer.free);
    }
}

void DevicePath::HostRelay::run(const ddp_collective& collective) {
    const Cut cut(collective, rank_, world_);
    up_->wait(*down_->record());
    make_room(cut);
    const std::size_t chunks = cut.chunks();
    for (std::size_t chunk = 0; chunk < std::min(chunks, pinned_.size() - 1); ++chunk)
        fetch(cut, chunk);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        if (const std::size_t ahead = chunk + pinned_.size() - 1; ahead < chunks) fetch(cut, ahead);
        reduce(cut, chunk);
        give_back(cut, chunk);
    }
}

void DevicePath::HostRelay::make_room(const Cut& cut) {
    for (Pinned& buffer : pinned_) {
        if (buffer.bytes >= cut.bytes()) continue;
        if (buffer.free) wait_for(cut, *buffer.free);
        buffer.memory = allocate_pinned(down_->device().kind, cut.bytes());
        buffer.bytes = cut.bytes();
    }
}

void DevicePath::HostRelay::fetch(const Cut& cut, std::size_t chunk) {
    Pinned& buffer = pinned(chunk);
    if (buffer.free) down_->wait(*buffer.free);
    for (std::size_t piece = 0; piece < cut.in; ++piece)
        down_->copy_to_host(
            buffer.memory.get() + (cut.own + piece) * cut.size(chunk) * cut.item,
            static_cast<const std::byte*>(cut.collective.send) + cut.offset(piece, chunk),
            cut.size(chunk) * cut.item);
    buffer.fetched = down_->record();
}

// Ranks are compared before the first chunk.
void DevicePath::HostRelay::reduce(const Cut& cut, std::size_t chunk) {
    Pinned& buffer = pinned(chunk);
    wait_for(cut, *buffer.fetched);
    ddp_collective part = cut.collective;
    part.device = {DDP_DEVICE_CPU, 0};
    part.stream = nullptr;
    part.count = cut.size(chunk);
    part.send = buffer.memory.get() + cut.own * part.count * cut.item;
    part.recv = buffer.memory.get() + cut.output(chunk) * cut.item;
    if (chunk > 0) part.signature_size = 0;
    host_.run(part);
}

// The part of an allgather from this rank itself is there already, unless it came from elsewhere.
void DevicePath::HostRelay::give_back(const Cut& cut, std::size_t chunk) {
    Pinned& buffer = pinned(chunk);
    for (std::size_t piece = 0; piece < cut.out; ++piece)
        up_->copy_to_device(
            static_cast<std::byte*>(cut.collective.recv) + cut.offset(piece, chunk),
            buffer.memory.get() + (cut.output(chunk) + piece * cut.size(chunk)) * cut.item,
            cut.size(chunk) * cut.item);
    buffer.free = up_->record();
}

void DevicePath::HostRelay::wait_for(const Cut& cut, const DeviceEvent& event) const {
    if (!libddp::wait_for(event, cut.deadline, look_))
        fail(DDP_ERROR_TIMEOUT, device_name(down_->device()),
             ": the work before a collective did not end within ", cut.collective.timeout_ms,
             " ms");
}

DevicePath::DevicePath(Config config)
    : config_(std::move(config)), stream_(on_device::make_stream(config_.device)) {
    if (!config_.on_device && config_.world > 1)
        relay_ = std::make_unique<HostRelay>(stream_, *config_.on_host, config_.rank, config_.world,
                                             config_.look);
}

DevicePath::~DevicePath() = default;

void DevicePath::run(ddp_collective collective, const Division& division,
                     const Submitted& submitted) {
    stream_->wait(submitted.begin);
    try {
        if (division.before != 1) {
            on_device::transfer(*stream_, {{collective.recv, collective.send, collective.count}},
                                collective.dtype, collective.dtype, division.before);
            collective.send = collective.recv;
        }
        if (config_.world == 1)
            run_alone(collective);
        else if (config_.on_device)
            enqueue(collective, submitted);
        else
            relay_->run(collective);
        if (division.after != 1) {
            const DeviceStream& end = relay_ ? relay_->up() : *stream_;
            on_device::transfer(end, {{collective.recv, collective.recv, collective.count}},
                                collective.dtype, collective.dtype, division.after);
        }
    } catch (...) {
        // Copies may be under way: whoever frees the memory comes after them.
        try {
            give_back_order(submitted);
        } catch (const Error&) {
            // A device that fails does nothing more.
        }
        throw;
    }
    give_back_order(submitted);
}

void DevicePath::enqueue(const ddp_collective& collective, const Submitted& submitted) {
    StreamWatch::Entry entry;
    entry.timeout_ms = collective.timeout_ms;
    entry.memory = submitted.memory;
    entry.what = submitted.what;
    config_.watch->enqueue(std::move(entry), [&](StreamWatch::Entry& enqueued) {
        enqueued.begin = stream_->record();
        ddp_collective op = collective;
        op.stream = stream_->handle();
        config_.on_device->run(op);
        enqueued.end = stream_->record();
    });
}

// A backend's scale is 1 here, and so is that of a mean.
void DevicePath::run_alone(const ddp_collective& c) {
    if (c.send != c.recv && c.count > 0)
        on_device::transfer(*stream_, {{c.recv, c.send, c.count}}, c.dtype, c.dtype, 1);
}

void DevicePath::give_back_order(const Submitted& submitted) const {
    submitted.stream.wait(*stream_->record());
    if (relay_) submitted.stream.wait(*relay_->up().record());
}

}  // namespace libddp
