#include "votes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace ddprun {

VotePage::VotePage(int ranks) : ranks_(ranks) {
    const std::size_t bytes = static_cast<std::size_t>(ranks_) * sizeof(libddp::VoteSlot);
    file_ = memfd_create("ddprun-votes", MFD_CLOEXEC);
    void* page = MAP_FAILED;
    if (file_ >= 0 && ftruncate(file_, static_cast<off_t>(bytes)) == 0)
        page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (page == MAP_FAILED)
        throw std::runtime_error("cannot make memory for votes: " +
                                 std::string(std::strerror(errno)));
    slots_ = static_cast<libddp::VoteSlot*>(page);
}

VotePage::~VotePage() {
    munmap(slots_, static_cast<std::size_t>(ranks_) * sizeof(libddp::VoteSlot));
    close(file_);
}

std::string VotePage::place(int local_rank) const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_) + ":" +
           std::to_string(local_rank);
}

void VotePage::reset(int local_rank) {
    slots_[local_rank].listeners = 0;
    for (auto& requests : slots_[local_rank].requests) requests = 0;
}

bool VotePage::listens(int local_rank) const {
    return slots_[local_rank].listeners > 0;
}

void VotePage::ask(int local_rank, std::uint32_t kind) {
    ++slots_[local_rank].requests[kind];
}

}  // namespace ddprun
