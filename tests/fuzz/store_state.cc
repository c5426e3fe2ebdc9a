// Any requests of any callers, in any order: the server's waits, and the state of a store alone.
#include "rendezvous/store_state.h"

#include <chrono>
#include <set>

#include "fuzz/target.h"
#include "rendezvous/wait_list.h"

namespace fuzz::store_state {
namespace {

using namespace libddp;

// Few, so that requests meet.
std::string name_of(Reader& bytes) {
    const std::uint8_t which = bytes.byte();
    if (which < 200) return std::string(1, static_cast<char>('a' + which % 5));
    return which < 210 ? std::string() : std::string(bytes.piece());
}

std::string value_of(Reader& bytes) {
    static const char* const values[] = {
        "", "0", "1", "x", "9223372036854775807", "-9223372036854775808"};
    const std::uint8_t which = bytes.byte();
    return which < 200 ? values[which % 6] : std::string(bytes.piece());
}

Request request_of(Reader& bytes) {
    Request request;
    request.op = static_cast<Op>(bytes.byte() % 24);
    const std::uint8_t shape = bytes.byte();
    for (int i = 0; i < (shape & 3); ++i) request.keys.push_back(name_of(bytes));
    for (int i = 0; i < (shape >> 2 & 3); ++i) request.values.push_back(value_of(bytes));
    request.number = static_cast<std::int8_t>(bytes.byte());
    if ((shape & 0x10) != 0) request.number = bytes.number<std::int64_t>();
    request.timeout_ms = static_cast<std::int8_t>(bytes.byte());
    if ((shape & 0x20) != 0) request.timeout_ms = bytes.number<std::int64_t>();
    return request;
}

Caller caller_of(Reader& bytes) {
    const std::uint8_t which = bytes.byte();
    return {std::uint64_t{which} & 3, std::uint64_t{which} >> 2};
}

// Each request is answered once, or waits.
class Server {
public:
    void submit(Caller caller, Request request) {
        const bool waited = open_.count(caller) != 0;
        open_.insert(caller);
        check(waits_.submit(caller, std::move(request), now_) == !waited,
              "a number is used twice, or said to be");
        compare();
    }
    void cancel(Caller caller) {
        waits_.cancel(caller);
        open_.erase(caller);
        compare();
    }
    void end(std::uint64_t owner) {
        waits_.end_owner(owner);
        std::erase_if(open_, [&](const Caller& caller) { return caller.owner == owner; });
        compare();
    }
    void pass(std::uint8_t milliseconds) {
        now_ += std::chrono::milliseconds(milliseconds);
        waits_.expire(now_);
        const auto next = waits_.next_deadline();
        check(!next || *next > now_, "a wait is over and was not answered");
        compare();
    }

private:
    static constexpr std::size_t kBytes = 2000;

    void compare() const {
        check(waits_.waiting() == open_.size(), "a request neither waits nor was answered");
    }

    std::set<Caller> open_;
    WaitList::Time now_{};
    WaitList waits_{[this](Caller caller, const Outcome& outcome) {
                        check(open_.erase(caller) == 1, "a request is answered twice");
                        check(outcome.code <= 0,
                              "an answer has a code that is neither DDP_OK nor an error's");
                    },
                    kBytes};
};

// A snapshot rebuilds the state.
void rebuild(const StoreState& state) {
    StoreState copy;
    std::size_t requests = 0;
    state.snapshot([&](std::uint64_t owner, const Request& request) {
        ++requests;
        const auto outcome = copy.apply(owner, request);
        check(!outcome || outcome->code == DDP_OK, "a request of a snapshot fails");
    });
    check(copy.bytes() == state.bytes(), "a state and its copy differ in size");
    check(copy.owners() == state.owners(), "a state and its copy have different owners");
    copy.snapshot([&](std::uint64_t, const Request&) { --requests; });
    check(requests == 0, "a state and its copy differ");
    for (const std::uint64_t owner : copy.owners()) copy.end_owner(owner);
    check(copy.owners().empty(), "an owner stays");
}

}  // namespace

DDP_FUZZ_TARGET(store_state, input) {
    Reader bytes(input);
    Server server;
    StoreState state(bytes.flag() ? limits::kTotal : 2000);
    while (!bytes.empty()) {
        const std::uint8_t what = bytes.byte();
        const Caller caller = caller_of(bytes);
        if (what < 200) {
            Request request = request_of(bytes);
            const std::size_t before = state.bytes();
            const auto outcome = state.apply(caller.owner, request);
            if (!outcome || outcome->code != DDP_OK)
                check(state.bytes() == before, "a failure or a wait changes the state");
            if (!outcome)
                check(state.timed_out(request, what).code == DDP_ERROR_TIMEOUT,
                      "a wait cannot time out");
            // The server takes these two itself.
            if (request.op != Op::kCancel && request.op != Op::kGoodbye)
                server.submit(caller, std::move(request));
        } else if (what < 215) {
            server.cancel(caller);
        } else if (what < 230) {
            server.end(caller.owner);
            state.end_owner(caller.owner);
        } else {
            server.pass(bytes.byte());
        }
    }
    rebuild(state);
}

}  // namespace fuzz::store_state
