// Between libFuzzer and a target. A program with several targets takes the name of one as its first
// argument.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string>

#include "fuzz/target.h"

namespace fuzz {
namespace {

struct Known {
    const char* name;
    Function function;
};

constexpr std::size_t kMost = 64;
Known known[kMost];
std::size_t count = 0;
Function chosen = nullptr;

// Processes that libFuzzer starts have none of the arguments that were taken away.
constexpr const char* kVariable = "DDP_FUZZ_TARGET_NAME";

[[noreturn]] void ask_for_name() {
    std::fprintf(stderr, "name a target first:");
    for (std::size_t i = 0; i < count; ++i) std::fprintf(stderr, " %s", known[i].name);
    std::fprintf(stderr, "\n");
    std::exit(2);
}

Function find(const std::string& name) {
    for (std::size_t i = 0; i < count; ++i)
        if (name == known[i].name) return known[i].function;
    ask_for_name();
}

}  // namespace

Target::Target(const char* name, Function function) {
    if (count == kMost) std::abort();
    known[count++] = {name, function};
}

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "\nfinding: %s\n", what);
    std::abort();
}

}  // namespace fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
    using namespace fuzz;
    std::cout.rdbuf(nullptr);  // what tools print
    std::cerr.rdbuf(nullptr);
    if (count == 1) {
        chosen = known[0].function;
    } else if (const char* name = std::getenv(kVariable)) {
        chosen = find(name);
    } else {
        if (*argc < 2) ask_for_name();
        chosen = find((*argv)[1]);
        setenv(kVariable, (*argv)[1], 1);
        (*argv)[1] = (*argv)[0];
        ++*argv;
        --*argc;
    }
    setenv("DDP_LOG_LEVEL", "off", 1);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::chosen({reinterpret_cast<const char*>(data), size});
    return 0;
}

// Memory that the system does not have is an answer, too: AddressSanitizer's own operator would end
// the process. libFuzzer's limit is above (-malloc_limit_mb).
extern "C" const char* __asan_default_options() {
    return "detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1:max_allocation_size_"
           "mb=64:quarantine_size_mb=16:malloc_context_size=5";
}
#define FOR_ALL_LIBRARIES __attribute__((visibility("default")))
FOR_ALL_LIBRARIES void* operator new(std::size_t size) {
    if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
    throw std::bad_alloc();
}
FOR_ALL_LIBRARIES void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    return std::malloc(size > 0 ? size : 1);
}
FOR_ALL_LIBRARIES void operator delete(void* memory) noexcept {
    std::free(memory);
}
FOR_ALL_LIBRARIES void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
extern "C" const char* __ubsan_default_options() {
    return "print_stacktrace=1";
}
