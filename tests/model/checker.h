// The functions of the model checker (GenMC) that programs of this folder use. tools/model-check
// compiles and runs these.
#pragma once

#include <cstddef>

extern "C" {
void __VERIFIER_assert_fail(const char* text, const char* file, int line);
void __VERIFIER_assume(bool condition);
int __VERIFIER_thread_create(const void* attributes, void* (*start)(void*), void* argument);
void* __VERIFIER_thread_join(long thread);
void __VERIFIER_thread_exit(void* result);
struct __VERIFIER_mutex_t {
    int state;
};
int __VERIFIER_mutex_init(__VERIFIER_mutex_t* mutex, const long* attributes);
int __VERIFIER_mutex_lock(__VERIFIER_mutex_t* mutex);
int __VERIFIER_mutex_unlock(__VERIFIER_mutex_t* mutex);
}

// A fact that holds in every execution.
#define ALWAYS(fact) \
    ((fact) ? static_cast<void>(0) : __VERIFIER_assert_fail(#fact, __FILE__, __LINE__))

namespace libddp::model {

// The execution goes on only if the condition holds: a wait, in which the checker need not look
// again and again.
inline void wait_until(bool condition) {
    __VERIFIER_assume(condition);
}

using Thread = void* (*)(void*);

inline long start(Thread thread, std::size_t number) {
    return __VERIFIER_thread_create(nullptr, thread, reinterpret_cast<void*>(number));
}
inline void join(long thread) {
    __VERIFIER_thread_join(thread);
}
inline int number_of(void* argument) {
    return static_cast<int>(reinterpret_cast<std::size_t>(argument));
}

}  // namespace libddp::model
