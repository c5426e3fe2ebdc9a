// The macro that makes a file of this folder a fuzz target: a function that takes any bytes.
// Whatever they are, it must return, without a crash, a leak or undefined behaviour.
//
//     DDP_FUZZ_TARGET(store_uri, input) { ... }      input: std::string_view
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "util/error.h"

namespace fuzz {

using Function = void (*)(std::string_view input);

// Makes a target known to main.cc.
struct Target {
    Target(const char* name, Function function);
};

// Ends the process, which is a finding, unless the condition holds.
void check(bool holds, const char* what);

// Runs `body`, which may refuse the input with an Error of the library. False: it has. Any other
// exception is a finding.
template <class Body>
bool accepts(Body&& body) {
    try {
        body();
        return true;
    } catch (const libddp::Error& error) {
        check(error.info().code < 0, "an error has a code that is no error's");
        return false;
    }
}

// Cuts an input into numbers and pieces. After its end everything is 0 or empty.
class Reader {
public:
    explicit Reader(std::string_view input) : left_(input) {}

    bool empty() const { return left_.empty(); }
    std::uint8_t byte() { return number<std::uint8_t>(); }
    // 0 to end - 1.
    std::size_t below(std::size_t end) { return byte() % end; }
    bool flag() { return (byte() & 1) != 0; }
    // Little endian.
    template <class Number>
    Number number() {
        std::uint64_t value = 0;
        const std::string_view bytes = take(sizeof(Number));
        for (std::size_t i = 0; i < bytes.size(); ++i)
            value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
        return static_cast<Number>(value);
    }
    // At most so many bytes.
    std::string_view take(std::size_t most) {
        const std::string_view taken = left_.substr(0, most);
        left_.remove_prefix(taken.size());
        return taken;
    }
    // A byte says how many follow, at most so many.
    std::string_view piece(std::size_t most = 255) {
        const std::size_t size = byte();
        return take(size < most ? size : most);
    }
    // Up to the next such byte, which is dropped, or the end.
    std::string_view until(char end) {
        const std::string_view taken = left_.substr(0, left_.find(end));
        left_.remove_prefix(taken.size() < left_.size() ? taken.size() + 1 : taken.size());
        return taken;
    }
    std::string_view rest() { return take(left_.size()); }

private:
    std::string_view left_;
};

}  // namespace fuzz

#define DDP_FUZZ_TARGET(name, input)                                   \
    static void fuzz_##name(std::string_view input);                   \
    static const fuzz::Target fuzz_target_##name{#name, &fuzz_##name}; \
    static void fuzz_##name(std::string_view input)
