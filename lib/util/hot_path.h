// For functions that every gradient of every step passes. They take some ten nanoseconds.
#pragma once

// The function keeps no arrays on its stack and reads no bytes of others, so it does without the
// check of -fstack-protector-strong, which takes a nanosecond of the 15 of ddp_grad_ready.
#if __has_attribute(no_stack_protector)
#define LIBDDP_HOT_PATH __attribute__((no_stack_protector))
#else
#define LIBDDP_HOT_PATH
#endif
