#include "rendezvous/store_state.h"

#include <charconv>
#include <string_view>

#include "util/error.h"
#include "util/printable.h"

namespace libddp {
namespace {

// The cost of an entry beside its bytes, roughly: without it, a billion empty values would be free.
constexpr std::size_t kOverhead = 64;

std::size_t cost(const std::string& key, const std::string& value) {
    return key.size() + value.size() + kOverhead;
}

Outcome with_value(std::string value) {
    Outcome outcome;
    outcome.values.push_back(std::move(value));
    return outcome;
}

Outcome with_number(std::int64_t number) {
    Outcome outcome;
    outcome.number = number;
    return outcome;
}

Request make(Op op, const std::string& key, const std::string& value) {
    Request request;
    request.op = op;
    request.keys.push_back(key);
    request.values.push_back(value);
    return request;
}

}  // namespace

std::optional<Outcome> StoreState::apply(Caller caller, const Request& request) {
    if (auto failure = invalid(request)) return failure;
    switch (request.op) {
        case Op::kSet:
            return set(request);
        case Op::kGet:
            return values_of(request.keys);
        case Op::kCompareSet:
            return compare_set(request);
        case Op::kAdd:
            return add(request);
        case Op::kAppend:
            return append(request);
        case Op::kCheck:
            return with_number(first_missing(request.keys) == request.keys.size());
        case Op::kWait:
            if (first_missing(request.keys) != request.keys.size()) return std::nullopt;
            return Outcome();
        case Op::kMultiSet:
            return multi_set(request);
        case Op::kMultiGet:
            return values_of(request.keys);
        case Op::kRemove:
            return remove(request);
        case Op::kNumKeys:
            return with_number(static_cast<std::int64_t>(keys_.size()));
        case Op::kListKeys:
            return list_keys(request);
        case Op::kQueuePush:
            return queue_push(request);
        case Op::kQueuePop:
            return queue_pop(request);
        case Op::kQueueSize: {
            auto queue = queues_.find(request.keys.front());
            return with_number(queue == queues_.end() ? 0 : static_cast<std::int64_t>(queue->second.size()));
        }
        case Op::kBarrier:
            return barrier(caller, request);
        case Op::kSetWill:
            return set_will(caller, request);
        case Op::kRemoveWill:
            remove_will(caller, request);
            return Outcome();
        case Op::kCancel:
            withdraw({caller.owner, static_cast<std::uint64_t>(request.number)});
            return Outcome();
        case Op::kGoodbye:
            end_owner(caller.owner);
            return Outcome();
        case Op::kReply:
        case Op::kClosing:
            break;  // invalid() has refused them
    }
    return failed(DDP_ERROR_UNSUPPORTED, "this store operation is not known");
}

std::size_t StoreState::first_missing(const Strings& keys, std::size_t from) const {
    while (from < keys.size() && keys_.find(keys[from]) != keys_.end()) ++from;
    return from;
}

bool StoreState::waits_at(const std::string& name, Caller caller) const {
    auto found = barriers_.find(name);
    return found != barriers_.end() && found->second.arrived.count(caller) != 0;
}

Outcome StoreState::full() const {
    return failed(DDP_ERROR_LIMIT, str("the store is full: it holds ", bytes_, " bytes, at most ", max_bytes_,
                                       " are allowed; delete keys that are no longer needed"));
}

std::size_t StoreState::size_of(const std::string& key) const {
    auto found = keys_.find(key);
    return found == keys_.end() ? 0 : cost(found->first, found->second);
}

Outcome StoreState::store(const std::string& key, std::string value) {
    std::size_t freed = size_of(key);
    std::size_t added = cost(key, value);
    if (!fits(freed, added)) return full();
    keys_[key] = std::move(value);
    bytes_ = bytes_ - freed + added;
    return Outcome();
}

Outcome StoreState::set(const Request& request) {
    return store(request.keys.front(), request.values.front());
}

std::optional<Outcome> StoreState::values_of(const Strings& keys) const {
    if (first_missing(keys) != keys.size()) return std::nullopt;
    // The size is known before anything is copied: 65,536 times the same 64 MiB value must not exhaust the memory.
    std::size_t total = 0;
    for (const auto& key : keys) total += size_of(key);
    if (total > limits::kFrame)
        return failed(DDP_ERROR_LIMIT, str("the values have ", total, " bytes, at most ", limits::kFrame,
                                           " are allowed in one call: ask for fewer keys"));
    Outcome outcome;
    outcome.values.reserve(keys.size());
    for (const auto& key : keys) outcome.values.push_back(keys_.find(key)->second);
    return outcome;
}

Outcome StoreState::compare_set(const Request& request) {
    const std::string& expected = request.values[0];
    const std::string& desired = request.values[1];
    auto found = keys_.find(request.keys.front());
    bool matches = found == keys_.end() ? expected.empty() : found->second == expected;
    if (!matches) return with_value(found == keys_.end() ? std::string() : found->second);
    Outcome outcome = store(request.keys.front(), desired);
    if (outcome.code == DDP_OK) outcome.values.push_back(desired);
    return outcome;
}

Outcome StoreState::add(const Request& request) {
    const std::string& key = request.keys.front();
    std::int64_t sum = 0;
    if (auto found = keys_.find(key); found != keys_.end()) {
        const std::string& text = found->second;
        auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), sum);
        if (code != std::errc() || end != text.data() + text.size())
            return failed(DDP_ERROR_INVALID_ARGUMENT,
                          str("key ", in_quotes(key), ": its value ", in_quotes(text), " is not a 64-bit integer"));
    }
    if (__builtin_add_overflow(sum, request.number, &sum))
        return failed(DDP_ERROR_INVALID_ARGUMENT, str("key ", in_quotes(key), ": the sum does not fit 64 bits"));
    Outcome outcome = store(key, std::to_string(sum));
    outcome.number = sum;
    return outcome;
}

Outcome StoreState::append(const Request& request) {
    const std::string& key = request.keys.front();
    const std::string& more = request.values.front();
    auto found = keys_.find(key);
    if (found == keys_.end()) return store(key, more);
    if (found->second.size() + more.size() > limits::kValue)
        return failed(DDP_ERROR_LIMIT,
                      str("key ", in_quotes(key), ": its value would grow to ", found->second.size() + more.size(),
                          " bytes, at most ", limits::kValue, " are allowed"));
    if (!fits(0, more.size())) return full();
    found->second += more;
    bytes_ += more.size();
    return Outcome();
}

Outcome StoreState::multi_set(const Request& request) {
    std::map<std::string_view, const std::string*> last;  // a repeated key: the last value counts
    for (std::size_t i = 0; i < request.keys.size(); ++i) last[request.keys[i]] = &request.values[i];
    std::size_t freed = 0;
    std::size_t added = 0;
    for (const auto& [key, value] : last) {
        std::string name(key);
        freed += size_of(name);
        added += cost(name, *value);
    }
    if (!fits(freed, added)) return full();
    for (const auto& [key, value] : last) keys_[std::string(key)] = *value;
    bytes_ = bytes_ - freed + added;
    return Outcome();
}

Outcome StoreState::remove(const Request& request) {
    auto found = keys_.find(request.keys.front());
    if (found == keys_.end()) return with_number(0);
    bytes_ -= cost(found->first, found->second);
    keys_.erase(found);
    return with_number(1);
}

Outcome StoreState::list_keys(const Request& request) const {
    const std::string& prefix = request.values.front();
    Outcome outcome;
    std::size_t total = 0;
    for (auto at = keys_.lower_bound(prefix); at != keys_.end() && at->first.starts_with(prefix); ++at) {
        total += at->first.size() + 4;
        if (total > limits::kFrame - 4096)
            return failed(DDP_ERROR_LIMIT,
                          str("more than ", limits::kFrame, " bytes of keys begin with the prefix: use a longer one"));
        outcome.values.push_back(at->first);
    }
    return outcome;
}

Outcome StoreState::queue_push(const Request& request) {
    const std::string& name = request.keys.front();
    const std::string& value = request.values.front();
    if (!fits(0, cost(name, value))) return full();
    queues_[name].push_back(value);
    bytes_ += cost(name, value);
    return Outcome();
}

std::optional<Outcome> StoreState::queue_pop(const Request& request) {
    auto queue = queues_.find(request.keys.front());
    if (queue == queues_.end()) return std::nullopt;
    Outcome outcome = with_value(std::move(queue->second.front()));
    bytes_ -= cost(queue->first, outcome.values.front());
    queue->second.pop_front();
    if (queue->second.empty()) queues_.erase(queue);
    return outcome;
}

std::optional<Outcome> StoreState::barrier(Caller caller, const Request& request) {
    const std::string& name = request.keys.front();
    if (request.number == 1 && barriers_.find(name) == barriers_.end()) return Outcome();
    if (!fits(0, name.size() + kOverhead)) return full();
    Barrier& at = barriers_[name];
    if (at.count == 0) at.count = request.number;
    if (at.count != request.number)
        return failed(DDP_ERROR_MISMATCH, str("barrier ", in_quotes(name), ": count is ", request.number,
                                              " here, but others entered it with ", at.count));
    if (at.arrived.insert(caller).second) bytes_ += name.size() + kOverhead;
    if (static_cast<std::int64_t>(at.arrived.size()) < at.count) return std::nullopt;
    bytes_ -= at.arrived.size() * (name.size() + kOverhead);
    barriers_.erase(name);
    return Outcome();
}

std::optional<Outcome> StoreState::hold(std::size_t bytes) {
    if (!fits(0, bytes)) return full();
    bytes_ += bytes;
    return std::nullopt;
}

void StoreState::withdraw(Caller caller) {
    for (auto at = barriers_.begin(); at != barriers_.end(); ++at) {
        if (at->second.arrived.erase(caller) == 0) continue;
        bytes_ -= at->first.size() + kOverhead;
        if (at->second.arrived.empty()) barriers_.erase(at);
        return;
    }
}

std::size_t StoreState::size_of(const std::string& key, const Will& will) {
    return cost(key, will.value) + will.holder_key.size() + will.holder.size();
}

Outcome StoreState::set_will(Caller caller, const Request& request) {
    const std::string& key = request.keys.front();
    Will will{request.values.front(), "", ""};
    if (request.keys.size() > 1) {
        will.holder_key = request.keys[1];
        will.holder = request.values[1];
    }
    const std::size_t added = size_of(key, will);
    std::size_t freed = 0;
    auto& mine = wills_[caller.owner];
    if (auto old = mine.find(key); old != mine.end()) freed = size_of(key, old->second);
    if (!fits(freed, added)) {
        if (mine.empty()) wills_.erase(caller.owner);
        return full();
    }
    bytes_ = bytes_ - freed + added;
    mine[key] = std::move(will);
    return Outcome();
}

void StoreState::remove_will(Caller caller, const Request& request) {
    auto mine = wills_.find(caller.owner);
    if (mine == wills_.end()) return;
    auto will = mine->second.find(request.keys.front());
    if (will == mine->second.end()) return;
    bytes_ -= size_of(will->first, will->second);
    mine->second.erase(will);
    if (mine->second.empty()) wills_.erase(mine);
}

Strings StoreState::end_owner(std::uint64_t owner) {
    for (auto at = barriers_.begin(); at != barriers_.end();) {
        auto& arrived = at->second.arrived;
        auto gone = std::erase_if(arrived, [&](const Caller& caller) { return caller.owner == owner; });
        bytes_ -= gone * (at->first.size() + kOverhead);
        at = arrived.empty() ? barriers_.erase(at) : std::next(at);
    }
    Strings created;
    auto mine = wills_.extract(owner);
    if (mine.empty()) return created;
    for (auto& [key, will] : mine.mapped()) {
        bytes_ -= size_of(key, will);
        if (!will.holder_key.empty()) {
            auto holder = keys_.find(will.holder_key);
            if (holder == keys_.end() || holder->second != will.holder) continue;
        }
        // The will's bytes were counted when it was made, so executing it cannot fail.
        const std::size_t size = cost(key, will.value);
        if (!keys_.try_emplace(key, std::move(will.value)).second) continue;
        bytes_ += size;
        created.push_back(key);
    }
    return created;
}

std::set<std::uint64_t> StoreState::owners() const {
    std::set<std::uint64_t> all;
    for (const auto& [owner, _] : wills_) all.insert(owner);
    for (const auto& [_, at] : barriers_)
        for (const auto& caller : at.arrived) all.insert(caller.owner);
    return all;
}

Outcome StoreState::timed_out(const Request& request, std::int64_t waited_ms) const {
    std::string bound = waited_ms == kNoWait ? "" : str(" within ", waited_ms, " ms");
    if (request.op == Op::kBarrier) {
        auto found = barriers_.find(request.keys.front());
        std::size_t came = found == barriers_.end() ? 0 : found->second.arrived.size();
        return failed(DDP_ERROR_TIMEOUT, str("barrier ", in_quotes(request.keys.front()), ": only ", came, " of ",
                                             request.number, " callers came", bound));
    }
    if (request.op == Op::kQueuePop)
        return failed(DDP_ERROR_TIMEOUT, str("queue ", in_quotes(request.keys.front()),
                                             waited_ms == kNoWait ? " is empty" : " got no element", bound));
    std::size_t missing = first_missing(request.keys);
    std::string key = missing < request.keys.size() ? in_quotes(request.keys[missing]) : "";
    return failed(DDP_ERROR_TIMEOUT,
                  str("key ", key, waited_ms == kNoWait ? " does not exist" : " did not appear", bound));
}

void StoreState::snapshot(const std::function<void(Caller, const Request&)>& visit) const {
    for (const auto& [key, value] : keys_) visit({}, make(Op::kSet, key, value));
    for (const auto& [name, queue] : queues_)
        for (const auto& value : queue) visit({}, make(Op::kQueuePush, name, value));
    for (const auto& [owner, mine] : wills_)
        for (const auto& [key, will] : mine) {
            Request request = make(Op::kSetWill, key, will.value);
            if (!will.holder_key.empty()) {
                request.keys.push_back(will.holder_key);
                request.values.push_back(will.holder);
            }
            visit({owner, 0}, request);
        }
    for (const auto& [name, at] : barriers_) {
        Request request;
        request.op = Op::kBarrier;
        request.keys.push_back(name);
        request.number = at.count;
        for (const auto& caller : at.arrived) visit(caller, request);
    }
}

}  // namespace libddp
