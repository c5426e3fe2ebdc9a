#include "rendezvous/wait_list.h"

#include <vector>

#include "util/error.h"

namespace libddp {
namespace {

// Roughly: the request, and the places that know it.
std::size_t size_of(const Request& request) {
    std::size_t size = 512;
    for (const auto& key : request.keys) size += key.size() + sizeof key;
    return size;
}

}  // namespace

bool WaitList::submit(Caller caller, Request request, Time now) {
    if (parked_.count(caller) != 0) return false;
    if (request.timeout_ms != kNoWait && may_wait(request.op) && too_many(caller.owner)) {
        reply_(caller, failed(DDP_ERROR_LIMIT, str("more than ", limits::kWaitsPerOwner, " waits on one connection")));
        return true;
    }
    if (auto outcome = state_.apply(caller, request)) {
        reply_(caller, *outcome);
        if (outcome->code == DDP_OK) announce(request);
        return true;
    }
    if (request.timeout_ms == kNoWait) {
        Outcome outcome = state_.timed_out(request, kNoWait);
        state_.withdraw(caller);
        reply_(caller, outcome);
        return true;
    }
    Parked parked;
    if (request.timeout_ms != kForever) parked.deadline = now + std::chrono::milliseconds(request.timeout_ms);
    parked.size = size_of(request);
    parked.request = std::move(request);
    if (auto full = state_.hold(parked.size)) {
        state_.withdraw(caller);
        reply_(caller, *full);
    } else {
        park(caller, std::move(parked));
    }
    return true;
}

void WaitList::cancel(Caller caller) {
    auto entry = parked_.find(caller);
    if (entry == parked_.end()) return;
    end(entry);
    state_.withdraw(caller);
}

void WaitList::end_owner(std::uint64_t owner) {
    for (auto entry = parked_.lower_bound({owner, 0}); entry != parked_.end() && entry->first.owner == owner;)
        end(entry++);
    for (const auto& key : state_.end_owner(owner)) wake_key(key);
}

void WaitList::expire(Time now) {
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
        Caller caller = deadlines_.begin()->second;
        Parked parked = end(parked_.find(caller));
        Outcome outcome = state_.timed_out(parked.request, parked.request.timeout_ms);
        state_.withdraw(caller);
        reply_(caller, outcome);
    }
}

std::optional<WaitList::Time> WaitList::next_deadline() const {
    if (deadlines_.empty()) return std::nullopt;
    return deadlines_.begin()->first;
}

bool WaitList::too_many(std::uint64_t owner) const {
    auto count = open_.find(owner);
    return count != open_.end() && count->second >= limits::kWaitsPerOwner;
}

// Where the request has to wait now. A wait for several keys waits at the first that is missing, so each change wakes
// it at most once; keys that it has already seen are looked at again only when the last one has come.
WaitList::Place WaitList::place_of(Parked& parked) const {
    const Request& request = parked.request;
    if (request.op == Op::kQueuePop) return {Kind::kQueue, request.keys.front()};
    if (request.op == Op::kBarrier) return {Kind::kBarrier, request.keys.front()};
    parked.scanned = state_.first_missing(request.keys, parked.scanned);
    if (parked.scanned == request.keys.size()) parked.scanned = state_.first_missing(request.keys);
    return {Kind::kKey, parked.scanned < request.keys.size() ? request.keys[parked.scanned] : std::string()};
}

void WaitList::park(Caller caller, Parked parked) {
    parked.place = place_of(parked);
    parked.ticket = next_ticket_++;
    places_[parked.place][parked.ticket] = caller;
    if (parked.deadline) deadlines_.insert({*parked.deadline, caller});
    ++open_[caller.owner];
    parked_.emplace(caller, std::move(parked));
}

WaitList::Parked WaitList::unpark(Entry entry) {
    Caller caller = entry->first;
    Parked parked = std::move(entry->second);
    parked_.erase(entry);
    auto place = places_.find(parked.place);
    place->second.erase(parked.ticket);
    if (place->second.empty()) places_.erase(place);
    if (parked.deadline) deadlines_.erase({*parked.deadline, caller});
    if (auto count = open_.find(caller.owner); --count->second == 0) open_.erase(count);
    return parked;
}

WaitList::Parked WaitList::end(Entry entry) {
    Parked parked = unpark(entry);
    state_.let_go(parked.size);
    return parked;
}

void WaitList::announce(const Request& done) {
    switch (done.op) {
        case Op::kSet:
        case Op::kCompareSet:
        case Op::kAdd:
        case Op::kAppend:
        case Op::kMultiSet:
            for (const auto& key : done.keys) wake_key(key);
            break;
        case Op::kQueuePush:
            wake_queue(done.keys.front());
            break;
        case Op::kBarrier:
            release_barrier(done.keys.front());
            break;
        default:
            break;
    }
}

void WaitList::wake_key(const std::string& key) {
    // A compare_set that did not match leaves a missing key missing.
    if (state_.first_missing({key}) == 0) return;
    auto place = places_.find({Kind::kKey, key});
    if (place == places_.end()) return;
    std::vector<Caller> woken;
    for (const auto& [_, caller] : place->second) woken.push_back(caller);
    for (const Caller& caller : woken) {
        Parked parked = unpark(parked_.find(caller));
        if (!place_of(parked).second.empty()) {
            park(caller, std::move(parked));
        } else {
            state_.let_go(parked.size);
            if (auto outcome = state_.apply(caller, parked.request)) reply_(caller, *outcome);
        }
    }
}

void WaitList::wake_queue(const std::string& name) {
    while (!state_.queue_empty(name)) {
        auto place = places_.find({Kind::kQueue, name});
        if (place == places_.end()) return;
        Caller caller = place->second.begin()->second;
        Parked parked = end(parked_.find(caller));
        if (auto outcome = state_.apply(caller, parked.request)) reply_(caller, *outcome);
    }
}

void WaitList::release_barrier(const std::string& name) {
    auto place = places_.find({Kind::kBarrier, name});
    if (place == places_.end()) return;
    std::vector<Caller> released;
    for (const auto& [_, caller] : place->second) released.push_back(caller);
    for (const Caller& caller : released) {
        end(parked_.find(caller));
        reply_(caller, Outcome());
    }
}

}  // namespace libddp
