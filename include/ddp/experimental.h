/* experimental.h: the gate of the experimental tier. A header that includes it is experimental: its
 * functions and structs may change or go with a minor version. The comment at its top says what may
 * change. Other headers are stable: docs/abi.md. A program defines DDP_EXPERIMENTAL before it
 * includes ddp.h, ddp.hpp or an experimental header. */
#ifndef DDP_EXPERIMENTAL
#error "this header is experimental: define DDP_EXPERIMENTAL before you include it (docs/abi.md)"
#endif
