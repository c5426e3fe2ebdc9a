/* ddp.hpp: the C++ face of libddp, header-only, C++17. Each class owns one C handle; failures are
 * exceptions.
 *
 * The semantics are those of the C functions: group.h, context.h, hook.h. Objects move and do not
 * copy. get() returns the C handle, for any C function. Methods that need the experimental tier
 * (docs/abi.md) exist with DDP_EXPERIMENTAL. A hook or continuation may throw: Context::finalize
 * throws an error with its text.
 */
#ifndef DDP_DDP_HPP
#define DDP_DDP_HPP

#include "context.hpp"

#ifdef DDP_EXPERIMENTAL
#include "averager.hpp"
#include "elastic.hpp"
#include "optimizer.hpp"
#include "record.hpp"
#endif

#endif  // DDP_DDP_HPP
