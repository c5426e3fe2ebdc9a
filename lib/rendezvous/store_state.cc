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

}  // namespace

std::optional<Outcome> StoreState::apply(std::uint64_t owner, const Request& request) {
    if (auto failure = invalid(request)) return failure;
    switch (request.op) {
        case Op::kSet:
            return store(request.keys.front(), request.values.front());
        case Op::kGet:
            if (const std::string* value = find(request.keys.front())) return with_value(*value);
            return std::nullopt;
        case Op::kCompareSet:
            return compare_set(request);
        case Op::kAdd:
            return add(request);
        case Op::kCheck:
            return with_number(first_missing(request.keys) == request.keys.size());
        case Op::kWait:
            if (first_missing(request.keys) != request.keys.size()) return std::nullopt;
            return Outcome();
        case Op::kRemove:
            return remove(request.keys.front());
        case Op::kListKeys:
            return list_keys(request.values.front());
        case Op::kSetWill:
            return set_will(owner, request);
        case Op::kRemoveWill:
            remove_will(owner, request.keys.front());
            return Outcome();
        case Op::kGoodbye:
            end_owner(owner);
            return Outcome();
        case Op::kCancel:
        case Op::kReply:
        case Op::kClosing:
            break;
    }
    return failed(DDP_ERROR_UNSUPPORTED, "this store operation is not for its contents");
}

const std::string* StoreState::find(const std::string& key) const {
    const auto found = keys_.find(key);
    return found == keys_.end() ? nullptr : &found->second;
}

std::size_t StoreState::first_missing(const Strings& keys, std::size_t from) const {
    while (from < keys.size() && find(keys[from]) != nullptr) ++from;
    return from;
}

Outcome StoreState::full() const {
    return failed(DDP_ERROR_LIMIT,
                  str("the store is full: it holds ", bytes_, " bytes, at most ", max_bytes_,
                      " are allowed; delete keys that are no longer needed"));
}

Outcome StoreState::store(const std::string& key, std::string value) {
    const std::string* old = find(key);
    const std::size_t freed = old == nullptr ? 0 : cost(key, *old);
    const std::size_t added = cost(key, value);
    if (!fits(freed, added)) return full();
    keys_[key] = std::move(value);
    bytes_ = bytes_ - freed + added;
    return Outcome();
}

Outcome StoreState::compare_set(const Request& request) {
    const std::string& expected = request.values[0];
    const std::string& desired = request.values[1];
    const std::string* old = find(request.keys.front());
    if (old == nullptr ? !expected.empty() : *old != expected)
        return with_value(old == nullptr ? "" : *old);
    Outcome outcome = store(request.keys.front(), desired);
    if (outcome.code == DDP_OK) outcome.values.push_back(desired);
    return outcome;
}

Outcome StoreState::add(const Request& request) {
    const std::string& key = request.keys.front();
    std::int64_t sum = 0;
    if (const std::string* text = find(key)) {
        const char* const last = text->data() + text->size();
        auto [end, code] = std::from_chars(text->data(), last, sum);
        if (code != std::errc() || end != last)
            return failed(DDP_ERROR_INVALID_ARGUMENT,
                          str("key ", in_quotes(key), ": its value ", in_quotes(*text),
                              " is not a 64-bit integer"));
    }
    if (__builtin_add_overflow(sum, request.number, &sum))
        return failed(DDP_ERROR_INVALID_ARGUMENT,
                      str("key ", in_quotes(key), ": the sum does not fit 64 bits"));
    Outcome outcome = store(key, std::to_string(sum));
    outcome.number = sum;
    return outcome;
}

Outcome StoreState::remove(const std::string& key) {
    auto found = keys_.find(key);
    if (found == keys_.end()) return with_number(0);
    bytes_ -= cost(found->first, found->second);
    keys_.erase(found);
    return with_number(1);
}

Outcome StoreState::list_keys(const std::string& prefix) const {
    Outcome outcome;
    std::size_t total = 0;
    for (auto at = keys_.lower_bound(prefix); at != keys_.end() && at->first.starts_with(prefix);
         ++at) {
        total += at->first.size() + 4;
        if (total > limits::kFrame - 4096)
            return failed(DDP_ERROR_LIMIT,
                          str("more than ", limits::kFrame,
                              " bytes of keys begin with the prefix: use a longer one"));
        outcome.values.push_back(at->first);
    }
    return outcome;
}

std::optional<Outcome> StoreState::hold(std::size_t bytes) {
    if (!fits(0, bytes)) return full();
    bytes_ += bytes;
    return std::nullopt;
}

std::size_t StoreState::size_of(const std::string& key, const Will& will) {
    return cost(key, will.value) + will.holder_key.size() + will.holder.size();
}

Outcome StoreState::set_will(std::uint64_t owner, const Request& request) {
    const std::string& key = request.keys.front();
    Will will{request.values.front(), "", ""};
    if (request.keys.size() > 1) {
        will.holder_key = request.keys[1];
        will.holder = request.values[1];
    }
    const std::size_t added = size_of(key, will);
    std::size_t freed = 0;
    auto& mine = wills_[owner];
    if (auto old = mine.find(key); old != mine.end()) freed = size_of(key, old->second);
    if (!fits(freed, added)) {
        if (mine.empty()) wills_.erase(owner);
        return full();
    }
    bytes_ = bytes_ - freed + added;
    mine[key] = std::move(will);
    return Outcome();
}

void StoreState::remove_will(std::uint64_t owner, const std::string& key) {
    auto mine = wills_.find(owner);
    if (mine == wills_.end()) return;
    auto will = mine->second.find(key);
    if (will == mine->second.end()) return;
    bytes_ -= size_of(will->first, will->second);
    mine->second.erase(will);
    if (mine->second.empty()) wills_.erase(mine);
}

Strings StoreState::end_owner(std::uint64_t owner) {
    Strings created;
    auto mine = wills_.extract(owner);
    if (mine.empty()) return created;
    for (auto& [key, will] : mine.mapped()) {
        bytes_ -= size_of(key, will);
        if (!will.holder_key.empty()) {
            const std::string* holder = find(will.holder_key);
            if (holder == nullptr || *holder != will.holder) continue;
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
    return all;
}

Outcome StoreState::timed_out(const Request& request, std::int64_t waited_ms) const {
    std::string bound = waited_ms == kNoWait ? "" : str(" within ", waited_ms, " ms");
    std::size_t missing = first_missing(request.keys);
    std::string key = missing < request.keys.size() ? in_quotes(request.keys[missing]) : "";
    return failed(
        DDP_ERROR_TIMEOUT,
        str("key ", key, waited_ms == kNoWait ? " does not exist" : " did not appear", bound));
}

void StoreState::snapshot(const std::function<void(std::uint64_t, const Request&)>& visit) const {
    for (const auto& [key, value] : keys_) visit(0, Request{Op::kSet, {key}, {value}});
    for (const auto& [owner, mine] : wills_)
        for (const auto& [key, will] : mine) {
            Request request{Op::kSetWill, {key}, {will.value}};
            if (!will.holder_key.empty()) {
                request.keys.push_back(will.holder_key);
                request.values.push_back(will.holder);
            }
            visit(owner, request);
        }
}

}  // namespace libddp
