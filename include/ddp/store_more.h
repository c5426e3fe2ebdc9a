/* store_more.h: more functions of the store, for a program that coordinates its ranks itself.
 *
 * EXPERIMENTAL: functions that no program turns out to need may go.
 */
#ifndef DDP_STORE_MORE_H
#define DDP_STORE_MORE_H

#include "experimental.h"
#include "store.h"

DDP_EXTERN_C_BEGIN

/* All functions: key, timeout_ms, *value, errors and facts as in store.h.
 * Threads: any. Blocks: for one round trip, plus the stated wait. Collective: no. Callbacks: yes.
 */

/* *exists: 1 if all `count` keys exist now, else 0. Does not wait. */
DDP_API ddp_status ddp_store_check(ddp_store* store, const char* const* keys, size_t count,
                                   int32_t* exists, ddp_error** error);

/* The keys that begin with `prefix` (NULL or "": all), sorted, each followed by a NUL: `*size`
 * bytes in `*keys`. */
DDP_API ddp_status ddp_store_list_keys(ddp_store* store, const char* prefix, void** keys,
                                       size_t* size, ddp_error** error);

/* Sets key to `desired` if its value is `expected`, or if key is missing and expected_size is 0.
 * Atomic. Returns the value that the key then has, which equals `desired` if and only if some
 * caller set it so. Empty if the key is still missing. */
DDP_API ddp_status ddp_store_compare_set(ddp_store* store, const char* key, const void* expected,
                                         size_t expected_size, const void* desired,
                                         size_t desired_size, void** value, size_t* size,
                                         ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_STORE_MORE_H */
