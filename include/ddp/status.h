/* status.h: conventions of all functions, status codes, errors, and the version.
 *
 * - A function that can fail returns ddp_status and takes `ddp_error** error`, which may be NULL.
 *   On failure it stores a new object there: free it with ddp_error_free. On success it leaves
 *   *error alone. It never reads *error.
 * - A failed call writes no other output parameter, except ddp_work_test's *done. Data that ranks
 *   were exchanging is then unspecified.
 * - Any call may return INVALID_ARGUMENT, OUT_OF_MEMORY, or UNSUPPORTED (unknown flags). A
 *   comment's "Errors:" adds more codes (without DDP_ERROR_) and special causes.
 * - No function ends the process, raises a signal in it or lets a C++ exception out.
 * - Strings end with NUL. libddp copies those it gets. A `const char*` result is static, or valid
 *   while its object is.
 * - The caller owns a handle that a call writes, and frees it with ddp_*_free, which accepts NULL.
 *   It owns bytes and text that a call writes (void**, char**), and frees them with ddp_free. Free
 *   handles in any order, but a store after its groups, and a ddp_elastic after its contexts and
 *   averagers. Frees wait only briefly: a garbage collector may call them. Freeing a group that
 *   other ranks need breaks it.
 * - A callback fails by returning an error status. It may set *error to an object of
 *   ddp_error_create, which libddp then owns. libddp calls `destroy` (may be NULL) exactly once,
 *   when it no longer needs user_data, but not if the call that takes user_data fails.
 * - Fill an option struct with its ddp_*_init function, then change it. Before a call that fills a
 *   struct, set its struct_size. Structs grow only at the end, and libddp writes at most
 *   struct_size bytes: programs with older headers work. With newer headers a call fails
 *   (UNSUPPORTED) if a field that this library does not know is not 0; where libddp fills a struct,
 *   it sets such fields to 0.
 * - A ddp_*_init function is inline: it tells ddp_*_init_sized the sizeof of its struct. A language
 *   that cannot call inline functions calls ddp_*_init_sized itself. NULL is allowed.
 * - Sizes are in bytes, times in milliseconds (_ms) or nanoseconds (_ns). timeout_ms bounds a wait:
 *   0 is the default that the comment names, and a call with a negative one does not wait: it
 *   returns TIMEOUT unless what it waits for is there. Options and ddp_work_create, which bound the
 *   waits of others, refuse a negative one (INVALID_ARGUMENT).
 * - A truth value is an int32_t: 1 or 0. Of arguments, everything but 0 is true. A flag that is not
 *   set is the default.
 * - The comment of each function, or of its section, ends with four facts. A function's fact
 *   overrides its section's:
 *     Threads:    "any": any thread, any time. "one": one thread at a time for this handle.
 *                 Never a signal handler.
 *     Blocks:     whether the call may wait, and for what. Every wait has a bound, except a spare's (elastic.h);
 *                 interrupt.h can end most.
 *     Collective: "yes": every rank of the group must call it, in the same order.
 *     Callbacks:  "yes": a hook or continuation may call it.
 */
#ifndef DDP_STATUS_H
#define DDP_STATUS_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"

DDP_EXTERN_C_BEGIN

/* 0 is success, errors are negative. Values are never reused. */
typedef int32_t ddp_status;

enum {
    DDP_OK = 0,
    DDP_ERROR_INVALID_ARGUMENT = -1,  /* NULL, out of range or wrong; names the argument or field */
    DDP_ERROR_INVALID_STATE = -2,     /* not allowed now; the message says when */
    DDP_ERROR_NOT_FOUND = -3,         /* no such backend or module, or no launcher */
    DDP_ERROR_ALREADY_EXISTS = -4,    /* a name or rank is taken */
    DDP_ERROR_UNSUPPORTED = -5,       /* this build, backend or version cannot do it */
    DDP_ERROR_OUT_OF_MEMORY = -6,     /* an allocation failed */
    DDP_ERROR_TIMEOUT = -7,           /* the stated time passed; names the late ranks */
    DDP_ERROR_UNAVAILABLE = -8,       /* the store or another rank cannot be reached */
    DDP_ERROR_PERMISSION_DENIED = -9, /* wrong or no job secret, or the system refused access */
    DDP_ERROR_RANK_FAILED = -10,      /* a rank died or freed its group: ddp_error_rank */
    /* ranks disagree: parameters, plan, or the order or size of a collective */
    DDP_ERROR_MISMATCH = -11,
    /* aborted, or freed: a context in a step, or a group or store in use */
    DDP_ERROR_ABORTED = -12,
    DDP_ERROR_MISSING_GRADIENT = -13, /* a gradient never became ready: ddp_error_param */
    DDP_ERROR_CALLBACK = -14,         /* a hook or continuation failed without a code of its own */
    DDP_ERROR_IO = -15,               /* a file or socket operation failed */
    /* a limit of libddp (docs/limits.md), or of open files or threads */
    DDP_ERROR_LIMIT = -16,
    DDP_ERROR_INTERNAL = -17, /* a defect in libddp: please report the message */
    /* a rank has no more inputs: DDP_CONTEXT_STOP_AT_FIRST_JOIN */
    DDP_ERROR_UNEVEN_INPUTS = -18,
    DDP_ERROR_INTERRUPTED = -19, /* a rank's program ended its wait: interrupt.h */
    DDP_ERROR_NONFINITE = -20    /* NaN or infinity: check.h */
};

/* All functions below:
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

/* Such as "DDP_ERROR_TIMEOUT"; "DDP_ERROR_UNKNOWN" for unknown values. */
DDP_API const char* ddp_status_name(ddp_status status);

/* An immutable error. For NULL the functions below return DDP_OK, "" and -1. */
typedef struct ddp_error ddp_error;

DDP_API ddp_status ddp_error_code(const ddp_error* error);
/* UTF-8. Its wording may change between versions. */
DDP_API const char* ddp_error_message(const ddp_error* error);
/* The rank at fault, the parameter, the bucket, and the step, counted from 0, unsynced ones too.
 * -1: none or unknown. If several ranks are at fault, the message names them all. */
DDP_API int32_t ddp_error_rank(const ddp_error* error);
DDP_API int32_t ddp_error_param(const ddp_error* error);
DDP_API int32_t ddp_error_bucket(const ddp_error* error);
DDP_API int64_t ddp_error_step(const ddp_error* error);

/* Makes an error for a callback to return. code: DDP_OK and unknown values become CALLBACK.
 * message: NULL means "". Never returns NULL: without memory, an OUT_OF_MEMORY error. */
DDP_API ddp_error* ddp_error_create(ddp_status code, const char* message);
DDP_API void ddp_error_free(ddp_error* error);

#define DDP_VERSION_MAJOR 0
#define DDP_VERSION_MINOR 1
#define DDP_VERSION_PATCH 0
/* The SONAME's number: docs/abi.md. */
#define DDP_ABI_VERSION 0

/* The loaded library's version: "0.1.0". */
DDP_API const char* ddp_version(void);

/* Frees bytes or text that a call wrote. NULL is allowed. Threads: any. Blocks: no. Collective: no.
 * Callbacks: yes. */
DDP_API void ddp_free(void* memory);

DDP_EXTERN_C_END

#endif /* DDP_STATUS_H */
