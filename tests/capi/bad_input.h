// Shared by the tests of refused calls: tables of calls that must fail, and outputs that must stay
// as they were.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/ranks.h"

// An output argument of a call that fails: the destructor checks that nobody wrote to it.
template <class T>
class Untouched {
public:
    explicit Untouched(int line = __builtin_LINE()) : line_(line) {
        std::memset(bytes_, kMark, sizeof bytes_);
    }
    ~Untouched() {
        EXPECT_TRUE(
            std::all_of(bytes_, bytes_ + sizeof bytes_, [](unsigned char b) { return b == kMark; }))
            << "the output of line " << line_ << " was written although the call failed";
    }
    Untouched(const Untouched&) = delete;
    Untouched& operator=(const Untouched&) = delete;
    T* operator&() { return reinterpret_cast<T*>(bytes_); }

private:
    static constexpr unsigned char kMark = 0x5a;
    alignas(T) unsigned char bytes_[sizeof(T)];
    const int line_;
};

// A call that must fail with `code` and a message that contains every word. param: the one that the
// error must name.
struct Refusal {
    const char* what;
    ddp_status code;
    std::vector<std::string> words;
    std::function<ddp_status(ddp_error**)> call;
    ddp_param param = -1;
};

inline constexpr ddp_status kInvalid = DDP_ERROR_INVALID_ARGUMENT;
inline constexpr ddp_status kState = DDP_ERROR_INVALID_STATE;

// The call of a function of the C interface with these arguments and, last, an error.
template <class Function, class... Args>
auto calling(Function function, Args... args) {
    return [=](ddp_error** error) { return function(args..., error); };
}

// The call of a function of ddp.hpp, which throws.
template <class Call>
auto throwing(Call call) {
    return [=](ddp_error** error) -> ddp_status {
        try {
            call();
            return DDP_OK;
        } catch (const ddp::Error& thrown) {
            if (error) *error = ddp_error_create(thrown.status(), thrown.what());
            return thrown.status();
        }
    };
}

// The refusal of an argument that must not be NULL.
inline Refusal null_argument(const char* function, const char* argument,
                             std::function<ddp_status(ddp_error**)> call) {
    return {function, kInvalid, {function, std::string(argument) + " is NULL"}, std::move(call)};
}

// A step that the message names is a fact of the error, too.
inline void expect_step_of_message(const Facts& facts) {
    const std::string word = "step ";
    for (std::size_t at = 0; (at = facts.message.find(word, at)) != std::string::npos;) {
        const bool begins = at == 0 || facts.message[at - 1] == ' ' || facts.message[at - 1] == '(';
        at += word.size();
        if (!begins || at == facts.message.size() || facts.message[at] < '0' ||
            facts.message[at] > '9')
            continue;
        EXPECT_EQ(facts.step, std::stoll(facts.message.substr(at))) << facts;
        return;
    }
}

// Makes each call twice, with and without an error object: a refused call changes nothing, so it is
// refused again.
inline void expect_refused(const std::vector<Refusal>& refusals) {
    for (const auto& refusal : refusals) {
        SCOPED_TRACE(refusal.what);
        ddp_error* error = nullptr;
        EXPECT_EQ(refusal.call(&error), refusal.code);
        const Facts facts = take_facts(error);
        EXPECT_EQ(facts.status, refusal.code);
        if (refusal.param >= 0) {
            EXPECT_EQ(facts.param, refusal.param) << facts;
        }
        expect_step_of_message(facts);
        for (const auto& word : refusal.words) EXPECT_THAT(facts.message, testing::HasSubstr(word));
        EXPECT_EQ(refusal.call(nullptr), refusal.code) << "without an error object";
    }
}

// Success does not touch *error.
template <class Call>
void expect_accepted(Call call, int line = __builtin_LINE()) {
    auto* const mark = reinterpret_cast<ddp_error*>(std::uintptr_t{0x5a5a});
    ddp_error* error = mark;
    if (call(&error) == DDP_OK) {
        EXPECT_EQ(error, mark) << "line " << line;
    } else {
        ADD_FAILURE() << "line " << line << ": " << take_message(error);
    }
}

// A struct from a newer header than the library's.
template <class Struct>
struct Newer {
    Struct known;
    char tail[64] = {};

    explicit Newer(const Struct& from) : known(from) { known.struct_size = sizeof *this; }
    const Struct* get() const { return &known; }
};

// The cases of struct_size that every versioned struct has. call(options, error) must succeed with
// `good`.
template <class Struct, class Call>
void check_struct_size(const Struct& good, const char* name, Call call) {
    Struct none = good, short_of_size = good, cut = good, never_set = good;
    none.struct_size = 0;
    short_of_size.struct_size = sizeof(std::size_t) - 1;
    cut.struct_size = sizeof(Struct) - 4;
    never_set.struct_size = std::size_t{0x5a5a5a5a5a5a5a58};
    Newer<Struct> newer(good), newer_used(good);
    newer_used.tail[63] = 1;
    std::string field = name;
    field += "->struct_size";
    expect_refused({
        {"struct_size 0",
         DDP_ERROR_INVALID_ARGUMENT,
         {field},
         [&](ddp_error** e) { return call(&none, e); }},
        {"struct_size 7",
         DDP_ERROR_INVALID_ARGUMENT,
         {field},
         [&](ddp_error** e) { return call(&short_of_size, e); }},
        {"half a field",
         DDP_ERROR_INVALID_ARGUMENT,
         {field},
         [&](ddp_error** e) { return call(&cut, e); }},
        {"struct_size not set",
         DDP_ERROR_INVALID_ARGUMENT,
         {field},
         [&](ddp_error** e) { return call(&never_set, e); }},
        {"unknown field",
         DDP_ERROR_UNSUPPORTED,
         {name},
         [&](ddp_error** e) { return call(newer_used.get(), e); }},
    });
    expect_accepted([&](ddp_error** e) { return call(newer.get(), e); });
}
