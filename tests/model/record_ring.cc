// An event that a reader takes from the ring of a record is one that a thread has written, whole,
// although threads write meanwhile.
//
// A thread that stands still in the middle of an event, while others write a whole round of the
// ring, is left out: its event and a newer one then share a place.
//
// races
// with tools/why/reader.cc: std::string before, now, after; => File::Slots before, now, after;
// with tools/why/reader.cc: for (std::string* one => for (File::Slots* one
// with tools/why/reader.cc: Bytes(std::string_view(looks.before).substr(at)) => looks.before.at(at)
// with tools/why/reader.cc: Bytes(std::string_view(looks.after).substr(at)) => looks.after.at(at)
// also kRing = 1, kWriters = 1, kEvents = 2 => kRing = 2, kWriters = 2, kEvents = 1
// weaken lib/record/recorder.cc: number.store(0, std::memory_order_relaxed); => nothing
// weaken lib/record/recorder.cc: std::atomic_thread_fence(std::memory_order_release); const std::int64_t at => const std::int64_t at
// weaken lib/record/recorder.cc: number.store(index + 1, std::memory_order_release) => number.store(index + 1, std::memory_order_relaxed)
// weaken tools/why/reader.cc: std::atomic_thread_fence(std::memory_order_acquire); => nothing
// weaken tools/why/reader.cc: before == after ? before : 0 => before
// weaken tools/why/reader.cc: before == after ? before : 0 => after
#include <atomic>

#include "checker.h"
#include "record/layout.h"

namespace libddp::record {

// from lib/record/recorder.h: Entry

class Record {
public:
    Record(Head& head, Event* events, std::uint64_t capacity)
        : capacity_(capacity), head_(&head), events_(events) {}
    std::int64_t write(std::uint16_t owner, const Entry& entry) noexcept;

private:
    const std::uint64_t capacity_;
    Head* const head_;
    Event* const events_;
};

std::int64_t now_ns() {
    return 0;
}

// from lib/record/recorder.cc: Record::write

namespace {

constexpr std::uint64_t kRing = 1, kWriters = 1, kEvents = 2;

Head head;
Event ring[kRing];

// The file as the kernel reads it: number by number, in any order. The checker need not look at
// those that the reader does not use.
struct File {
    struct Place {
        const Event* event;
        Place operator+(std::size_t bytes) const { return {event + bytes / sizeof(Event)}; }
        template <class Number>
        Number value() const {
            return event->number;
        }
    };
    struct Slots {
        Event events[kRing];
        std::size_t size() const { return sizeof events; }
        Place data() const { return {events}; }
        Place at(std::size_t bytes) const { return data() + bytes; }
        void operator=(int look) {
            for (std::uint64_t i = 0; i < kRing; ++i)
                if (look == 1) {
                    events[i].time_ns = __atomic_load_n(&ring[i].time_ns, __ATOMIC_RELAXED);
                    events[i].step = __atomic_load_n(&ring[i].step, __ATOMIC_RELAXED);
                } else {
                    events[i].number = __atomic_load_n(&ring[i].number, __ATOMIC_RELAXED);
                }
        }
    };
    int looks = 0;
    int read(std::uint64_t, std::uint64_t) { return looks++; }
};

struct ProcessRecord {
    struct {
        void push_back(const Event& event) const {
            ALWAYS(event.step == event.time_ns);
            ALWAYS(kWriters > 1 || event.step == static_cast<std::int64_t>(event.number));
        }
    } events;
};

bool is_sensible(const Event&) {
    return true;
}

void copy_event(Event* to, const File::Place& from, std::size_t) {
    to->time_ns = from.event->time_ns;
    to->step = from.event->step;
}

}  // namespace
}  // namespace libddp::record

namespace std {
using libddp::record::copy_event;
}
#define memcpy copy_event

namespace libddp::record {
namespace {

// from tools/why/reader.cc: Looks
// from tools/why/reader.cc: look
// from tools/why/reader.cc: number_of
// from tools/why/reader.cc: read_slots

void write_event(std::int64_t step) {
    Entry entry{EventKind::kLaunch};
    entry.step = entry.time_ns = step;
    Record(head, ring, kRing).write(1, entry);
}

void* write_events(void* argument) {
    for (std::uint64_t event = 0; event < kEvents; ++event)
        write_event(static_cast<std::int64_t>(kRing + 1 + event) + model::number_of(argument));
    return nullptr;
}

void* read(void*) {
    File file;
    ProcessRecord record;
    read_slots(record, look(file, 0, sizeof ring), 0, kRing);
    return nullptr;
}

}  // namespace
}  // namespace libddp::record

int main() {
    using namespace libddp;
    for (std::uint64_t event = 1; event <= record::kRing; ++event)
        record::write_event(static_cast<std::int64_t>(event));
    for (std::uint64_t writer = 0; writer < record::kWriters; ++writer)
        model::start(record::write_events, writer);
    model::start(record::read, 0);
    return 0;
}
