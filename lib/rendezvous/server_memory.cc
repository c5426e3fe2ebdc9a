#include "rendezvous/server_memory.h"

namespace libddp {
namespace {

using Clock = std::chrono::steady_clock;

// See ServerLimits::incomplete.
constexpr std::size_t kBytesPerSecond = std::size_t{4} << 20;

}  // namespace

bool RequestRoom::ask(Client client, std::size_t bytes) {
    if (!asked_.empty() || bytes > left_) {
        asked_.emplace_back(client, bytes);
        return false;
    }
    left_ -= bytes;
    held_[client] = {bytes, Clock::now()};
    return true;
}

std::vector<RequestRoom::Client> RequestRoom::give_back(Client client) {
    std::erase_if(asked_, [&](const auto& asked) { return asked.first == client; });
    if (auto held = held_.extract(client)) left_ += held.mapped().bytes;
    std::vector<Client> given;
    for (; !asked_.empty() && asked_.front().second <= left_; asked_.pop_front()) {
        const auto [next, bytes] = asked_.front();
        left_ -= bytes;
        held_[next] = {bytes, Clock::now()};
        given.push_back(next);
    }
    return given;
}

std::vector<RequestRoom::Client> RequestRoom::overdue(Clock::duration bound) const {
    std::vector<Client> late;
    if (asked_.empty()) return late;
    for (const auto& [client, held] : held_)
        if (Clock::now() - held.since > bound + std::chrono::seconds(held.bytes / kBytesPerSecond))
            late.push_back(client);
    return late;
}

SharedBytes Answers::share(std::string&& bytes) {
    for (const auto& kept : latest_)
        if (SharedBytes found = kept.lock(); found != nullptr && *found == bytes) return found;
    unsent_ += bytes.size();
    SharedBytes made(new std::string(std::move(bytes)), [this](const std::string* mine) {
        unsent_ -= mine->size();
        delete mine;
    });
    latest_[next_++ % latest_.size()] = made;
    return made;
}

}  // namespace libddp
