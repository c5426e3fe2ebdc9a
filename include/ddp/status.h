/* status.h: status codes, error objects, and the version of the library.
 *
 * CONVENTIONS OF EVERY PUBLIC FUNCTION
 *
 * - A function that can fail returns ddp_status and takes a trailing `ddp_error **error`, which may be NULL.
 *   On failure, if `error` is not NULL, `*error` receives a new object that the caller frees with ddp_error_free.
 *   On success `*error` is not touched. Its old value is never read, so it need not be initialised.
 * - Other outputs are written only on success.
 * - There is no global or thread-local "last error": every error belongs to the call that returned it.
 * - No function terminates the process, raises a signal in it or lets a C++ exception out.
 * - Option structs start with `size_t struct_size`. Fill them with their `ddp_*_init` function and change what you
 * need. Fields are only ever appended; a struct from an older header keeps working, and one from a newer header works
 * as long as the fields this library does not know are zero (otherwise DDP_ERROR_UNSUPPORTED).
 * - `ddp_*_free(NULL)` does nothing. A free is local: it never communicates and never waits for another rank, so that a
 *   garbage collector may call it at any time.
 * - Each function's comment ends with four facts.
 *     Threads:    "any" (may be called from any thread at any time) or "one" (one thread at a time for this handle).
 *     Blocks:     whether it may wait, and for what. Every wait has a bound.
 *     Collective: "yes" if every rank of the group must call it, in the same order.
 *     Callbacks:  whether it may be called from inside a hook or a continuation.
 */
#ifndef DDP_STATUS_H
#define DDP_STATUS_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"

DDP_EXTERN_C_BEGIN

/* What happened. 0 is success, every error is negative. The values are pinned: they never change and are never reused.
 */
typedef int32_t ddp_status;

enum {
    DDP_OK = 0,
    DDP_ERROR_INVALID_ARGUMENT = -1,  /* an argument is NULL, out of range, or of the wrong type */
    DDP_ERROR_INVALID_STATE = -2,     /* the call is not allowed now; the message says when it is */
    DDP_ERROR_NOT_FOUND = -3,         /* no such key, parameter, backend, file */
    DDP_ERROR_ALREADY_EXISTS = -4,    /* name or rank already taken */
    DDP_ERROR_UNSUPPORTED = -5,       /* understood, but this build, backend or version cannot do it */
    DDP_ERROR_OUT_OF_MEMORY = -6,     /* an allocation failed */
    DDP_ERROR_TIMEOUT = -7,           /* the stated time passed; names the ranks that did not come */
    DDP_ERROR_UNAVAILABLE = -8,       /* the store or a peer cannot be reached */
    DDP_ERROR_PERMISSION_DENIED = -9, /* the store refused the job secret, or the system refused a resource */
    DDP_ERROR_RANK_FAILED = -10,      /* a rank died or left; ddp_error_rank says which */
    DDP_ERROR_MISMATCH = -11,         /* ranks disagree: parameters, plan, or the order or size of a collective */
    DDP_ERROR_ABORTED = -12,          /* ddp_group_abort or ddp_context_abort was called */
    DDP_ERROR_MISSING_GRADIENT = -13, /* ddp_finalize: a gradient never became ready; ddp_error_param says which */
    DDP_ERROR_CALLBACK = -14,         /* a user's hook or continuation failed without a code of its own */
    DDP_ERROR_IO = -15,               /* a file or socket operation failed */
    DDP_ERROR_LIMIT = -16,            /* a limit was exceeded: a documented one (key length), or open files, threads */
    DDP_ERROR_INTERNAL = -17,         /* a defect in libddp: please report the message */
    DDP_ERROR_UNEVEN_INPUTS = -18,    /* a rank has no more inputs and the context was told to stop then */
    DDP_ERROR_INTERRUPTED = -19       /* a rank's program ended its wait: interrupt.h; ddp_error_rank says which */
};

/* The constant's name, "DDP_ERROR_TIMEOUT". Never NULL: an unknown value gives "DDP_ERROR_UNKNOWN".
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API const char* ddp_status_name(ddp_status status);

/* An error: a code, a sentence, and what it names. Immutable. */
typedef struct ddp_error ddp_error;

/* The accessors below accept NULL and then answer as for "no error" (DDP_OK, "", -1).
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_error_code(const ddp_error* error);
/* A sentence for a person; UTF-8, owned by `error`. Its wording may change between versions. */
DDP_API const char* ddp_error_message(const ddp_error* error);
/* The rank that caused it, or -1. */
DDP_API int32_t ddp_error_rank(const ddp_error* error);
/* The parameter it is about (index in registration order), or -1. */
DDP_API int32_t ddp_error_param(const ddp_error* error);
/* The bucket it is about, or -1. */
DDP_API int32_t ddp_error_bucket(const ddp_error* error);
/* The step (number of ddp_finalize calls that returned before this one), or -1. */
DDP_API int64_t ddp_error_step(const ddp_error* error);

/* Makes an error: what a hook, a continuation or a backend returns to say what went wrong.
 * code: a DDP_ERROR_* value (DDP_OK and unknown values become DDP_ERROR_CALLBACK). message: copied; NULL means "".
 * Returns NULL only when memory is exhausted. The caller owns the result until it hands it over.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_error* ddp_error_create(ddp_status code, const char* message);
/* Frees an error. NULL is allowed. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_error_free(ddp_error* error);

/* The version these headers belong to. */
#define DDP_VERSION_MAJOR 0
#define DDP_VERSION_MINOR 1
#define DDP_VERSION_PATCH 0
/* Grows with every incompatible change of the ABI; the SONAME's number. */
#define DDP_ABI_VERSION 0

/* The version of the loaded library, "0.1.0". Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API const char* ddp_version(void);
/* DDP_ABI_VERSION of the loaded library. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_abi_version(void);
/* What the loaded library was built with: words separated by spaces, such as "gloo tcp-store file-store".
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API const char* ddp_features(void);

DDP_EXTERN_C_END

#endif /* DDP_STATUS_H */
