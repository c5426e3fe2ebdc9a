// A reader that finds a fact in a record sees all of it. An error in it was noted like this by the
// process, although the next error overwrites it meanwhile.
//
// races
// with lib/record/recorder.cc: char* Record::add_locked(FactKind kind, std::uint32_t owner, std::string_view fact) => char* Record::add_locked(FactKind kind, std::uint32_t owner, Text fact)
// with lib/record/recorder.cc: char* Record::add(FactKind kind, std::uint32_t owner, std::string_view fact) => char* Record::add(FactKind kind, std::uint32_t owner, Text fact)
// with lib/record/recorder.cc: std::string(kFailureBytes, '\0') => Text()
// with lib/record/recorder.cc: add(FactKind::kFailure, 0, => add(FactKind::kFailure, 7,
// with tools/why/reader.cc: std::string before, now, after; => Look before, now, after;
// with tools/why/reader.cc: for (std::string* one => for (Look* one
// with tools/why/reader.cc: Bytes(std::string_view(looks.before).substr(at)) => looks.before
// with tools/why/reader.cc: Bytes(std::string_view(looks.after).substr(at)) => looks.after
// weaken lib/record/recorder.cc: .store(magic, std::memory_order_release) => .store(magic, std::memory_order_relaxed)
// weaken lib/record/recorder.cc: time.store(0, std::memory_order_relaxed); => nothing
// weaken lib/record/recorder.cc: std::atomic_thread_fence(std::memory_order_release); std::memcpy(failure_ => std::memcpy(failure_
// weaken lib/record/recorder.cc: time.store(now_ns(), std::memory_order_release) => time.store(now_ns(), std::memory_order_relaxed)
// weaken tools/why/reader.cc: std::atomic_thread_fence(std::memory_order_acquire); => nothing
// weaken tools/why/reader.cc: before == after ? before : 0 => before
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "checker.h"
#include "record/layout.h"
#include "util/mutex.h"

namespace libddp::record {
namespace {

// The errors that are noted, 1 and 2, have their numbers as times and codes.
struct ErrorInfo {
    int code;
    int message = 0;
};
int noted = 0;

std::int64_t now_ns() {
    return noted;
}
void copy_text(char*, std::size_t, int) {}
VerdictFact fact_of(const ErrorInfo& error) {
    return {error.code, 0, 0, 0, 0};
}

// A fact of zeros.
struct Text {
    const Text* data() const { return this; }
    std::size_t size() const { return sizeof(FailureFact); }
};

constexpr std::size_t kOwner = offsetof(FactHead, owner), kTime = sizeof(FactHead),
                      kCode = kTime + offsetof(FailureFact, error);
alignas(8) char page[kCode + sizeof(std::int32_t)];

template <class Number>
void put(char* place, Number number) {
    __atomic_store_n(reinterpret_cast<Number*>(place), number, __ATOMIC_RELAXED);
}
template <class Number>
Number get(const char* place) {
    return __atomic_load_n(reinterpret_cast<const Number*>(place), __ATOMIC_RELAXED);
}

// The checker follows one number of each piece of memory that is copied.
void copy(std::uint64_t* magic, const char*, std::size_t) {
    *magic = 1;
}
void copy(char* place, const FactHead* head, std::size_t) {
    put(place + kOwner, head->owner);
}
void copy(char*, const Text*, std::size_t) {}
void copy(char* place, const char* error, std::size_t) {
    put(place, *reinterpret_cast<const std::int32_t*>(error));
}
void clear(char*, int, std::size_t) {}

}  // namespace
}  // namespace libddp::record

namespace std {
using libddp::record::clear;
using libddp::record::copy;
}  // namespace std
#define memcpy copy
#define memset clear

namespace libddp::record {
namespace {

class Record {
public:
    void note_failure(const ErrorInfo& error);

private:
    char* append(std::size_t) { return page; }
    char* add(FactKind kind, std::uint32_t owner, Text fact);
    char* add_locked(FactKind kind, std::uint32_t owner, Text fact);

    Mutex mutex_;
    std::atomic<std::uint32_t> facts_{0};
    Mutex failure_mutex_;
    char* failure_ = nullptr;
};

// from lib/record/recorder.cc: put_magic
// from lib/record/recorder.cc: Record::add
// from lib/record/recorder.cc: Record::add_locked
// from lib/record/recorder.cc: Record::note_failure

struct Look {
    std::uint64_t magic = 0;
    std::uint32_t owner = 0;
    std::int64_t time = 0;
    std::int32_t code = 0;

    void operator=(int look) {
        if (look == 0) magic = get<std::uint64_t>(page);
        if (look == 1) {
            owner = get<std::uint32_t>(page + kOwner);
            code = get<std::int32_t>(page + kCode);
        } else {
            time = get<std::int64_t>(page + kTime);
        }
    }
    template <class Number>
    Number value() const {
        return time;
    }
};
struct File {
    int looks = 0;
    int read(std::uint64_t, std::uint64_t) { return looks++; }
};

// from tools/why/reader.cc: Looks
// from tools/why/reader.cc: look
// from tools/why/reader.cc: number_of

Record record;

void* note(void*) {
    for (noted = 1; noted <= 2; ++noted) record.note_failure({noted});
    return nullptr;
}

void* read(void*) {
    File file;
    const Looks looks = look(file, 0, sizeof page);
    if (looks.before.magic == 0) return nullptr;
    ALWAYS(looks.now.owner == 7);
    const std::int64_t time = number_of<std::int64_t>(looks, 0);
    if (time != 0) ALWAYS(looks.now.code == time);
    return nullptr;
}

}  // namespace
}  // namespace libddp::record

int main() {
    using namespace libddp;
    model::start(record::note, 0);
    model::start(record::read, 0);
    return 0;
}
