#include "launch/vote_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ddp/vote.h"
#include "launch/environment.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp {
namespace {

constexpr std::int64_t kMostSlots = 1 << 20;

}  // namespace

VoteListener::VoteListener() {
    const std::string place = process_env(kVotesVariable).value_or("");
    if (place.empty()) return;
    const std::size_t colon = place.rfind(':');
    if (colon == std::string::npos)
        fail(DDP_ERROR_INVALID_ARGUMENT, "the environment variable DDP_VOTES is '", place,
             "'; ddprun sets it to a path, a colon and a number");
    const auto slot = static_cast<std::size_t>(
        parse_int(place.substr(colon + 1), 0, kMostSlots, "the slot in DDP_VOTES"));
    const std::string path = place.substr(0, colon);
    const std::size_t bytes = (slot + 1) * sizeof(VoteSlot);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* const page =
        file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int why = errno;
    if (file >= 0) close(file);
    if (page == MAP_FAILED)
        fail(DDP_ERROR_UNAVAILABLE, "cannot map '", path,
             "', in which ddprun asks for votes (DDP_VOTES): ", std::strerror(why),
             "; start the ranks where they see ddprun's files in /proc, or ddprun without "
             "--checkpoint-on and --stop-on");
    page_ = page;
    bytes_ = bytes;
    slot_ = static_cast<VoteSlot*>(page) + slot;
    slot_->listeners.fetch_add(1, std::memory_order_relaxed);
}

VoteListener::~VoteListener() {
    if (!slot_) return;
    slot_->listeners.fetch_sub(1, std::memory_order_relaxed);
    munmap(page_, bytes_);
}

std::uint32_t VoteListener::take() {
    if (!slot_) return 0;
    constexpr std::uint32_t kBits[] = {DDP_VOTE_CHECKPOINT, DDP_VOTE_STOP};
    std::uint32_t bits = 0;
    for (int kind = 0; kind < VoteSlot::kKinds; ++kind) {
        const std::uint32_t asked = slot_->requests[kind].load(std::memory_order_relaxed);
        if (asked != taken_[kind]) bits |= kBits[kind];
        taken_[kind] = asked;
    }
    return bits;
}

}  // namespace libddp
