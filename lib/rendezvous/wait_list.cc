#include "rendezvous/wait_list.h"

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
        reply_(caller, failed(DDP_ERROR_LIMIT, str("more than ", limits::kWaitsPerOwner,
                                                   " waits on one connection")));
        return true;
    }
    if (auto outcome = state_.apply(caller.owner, request)) {
        reply_(caller, *outcome);
        if (outcome->code == DDP_OK && changes_state(request.op))
            for (const auto& key : request.keys) wake(key);
        return true;
    }
    if (request.timeout_ms == kNoWait) {
        reply_(caller, state_.timed_out(request, kNoWait));
        return true;
    }
    Parked parked;
    if (request.timeout_ms != kForever)
        parked.deadline = now + std::chrono::milliseconds(request.timeout_ms);
    parked.size = size_of(request);
    parked.request = std::move(request);
    if (auto full = state_.hold(parked.size)) {
        reply_(caller, *full);
    } else {
        look(parked);
        park(caller, std::move(parked));
    }
    return true;
}

void WaitList::cancel(Caller caller) {
    auto entry = parked_.find(caller);
    if (entry != parked_.end()) end(entry);
}

void WaitList::end_owner(std::uint64_t owner) {
    for (auto entry = parked_.lower_bound({owner, 0});
         entry != parked_.end() && entry->first.owner == owner;)
        end(entry++);
    for (const auto& key : state_.end_owner(owner)) wake(key);
}

void WaitList::expire(Time now) {
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
        Caller caller = deadlines_.begin()->second;
        Parked parked = end(parked_.find(caller));
        reply_(caller, state_.timed_out(parked.request, parked.request.timeout_ms));
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

// Where the request has to wait now; false: nowhere. A wait for several keys waits at the first
// that is missing, so each change wakes it at most once; keys that it has already seen are looked
// at again only when the last one has come.
bool WaitList::look(Parked& parked) const {
    const Strings& keys = parked.request.keys;
    parked.scanned = state_.first_missing(keys, parked.scanned);
    if (parked.scanned == keys.size()) parked.scanned = state_.first_missing(keys);
    if (parked.scanned == keys.size()) return false;
    parked.key = keys[parked.scanned];
    return true;
}

void WaitList::park(Caller caller, Parked parked) {
    keys_[parked.key].insert(caller);
    if (parked.deadline) deadlines_.insert({*parked.deadline, caller});
    ++open_[caller.owner];
    parked_.emplace(caller, std::move(parked));
}

WaitList::Parked WaitList::unpark(Entry entry) {
    Caller caller = entry->first;
    Parked parked = std::move(entry->second);
    parked_.erase(entry);
    auto at = keys_.find(parked.key);
    at->second.erase(caller);
    if (at->second.empty()) keys_.erase(at);
    if (parked.deadline) deadlines_.erase({*parked.deadline, caller});
    if (auto count = open_.find(caller.owner); --count->second == 0) open_.erase(count);
    return parked;
}

WaitList::Parked WaitList::end(Entry entry) {
    Parked parked = unpark(entry);
    state_.let_go(parked.size);
    return parked;
}

void WaitList::wake(const std::string& key) {
    // A compare_set that did not match leaves a missing key missing.
    auto at = keys_.find(key);
    if (at == keys_.end() || state_.first_missing({key}) == 0) return;
    const std::set<Caller> woken = at->second;
    for (const Caller& caller : woken) {
        Parked parked = unpark(parked_.find(caller));
        if (look(parked)) {
            park(caller, std::move(parked));
        } else {
            state_.let_go(parked.size);
            if (auto outcome = state_.apply(caller.owner, parked.request)) reply_(caller, *outcome);
        }
    }
}

}  // namespace libddp
