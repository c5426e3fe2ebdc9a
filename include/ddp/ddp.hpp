/* ddp.hpp: the C++ face of libddp, header-only, C++17. Each class owns one C handle; failures are exceptions.
 *
 * The semantics are those of the C functions: group.h, context.h, hook.h. Objects move and do not copy. Any C function
 * can be used beside the classes through get(). A hook or continuation may throw: the exception's text becomes the
 * error that Context::finalize throws.
 */
#ifndef DDP_DDP_HPP
#define DDP_DDP_HPP

#include "averager.hpp"
#include "context.hpp"

#endif  // DDP_DDP_HPP
