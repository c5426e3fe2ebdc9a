/* handle.h: an object of libddp's as a Python object: of any opaque type, owned or borrowed.
 *
 * A handle is freed when it is closed or collected, but never while a call in any thread still uses
 * it. All functions need the interpreter lock, unless they say otherwise.
 */
#ifndef DDP_PYTHON_HANDLE_H
#define DDP_PYTHON_HANDLE_H

#include "base.h"

typedef struct DdpKind {
    const char* name;
    void (*free)(void* pointer); /* NULL: borrowed, always */
} DdpKind;

extern const DdpKind ddp_py_ddp_store, ddp_py_ddp_group, ddp_py_ddp_work, ddp_py_ddp_context,
    ddp_py_ddp_averager, ddp_py_ddp_optimizer, ddp_py_ddp_elastic, ddp_py_ddp_layout,
    ddp_py_ddp_error, ddp_py_ddp_bucket;

typedef struct DdpHandle {
    PyObject_HEAD const DdpKind* kind;
    void* pointer; /* NULL: closed */
    int borrowed;  /* of a callback or part of another: not ours to free */
    int calls;     /* that use it now */
    int closing;   /* to be freed when the last of them returns */
    unsigned era;  /* how often the process had been forked when it was made */
    /* list, or NULL: exceptions of callbacks on their way to the call that they come out of */
    PyObject* raised;
    /* list, or NULL: handles that callbacks were lent, and works that they passed on */
    PyObject* borrows;
    int64_t step;   /* of what a callback was lent: the step of its bucket */
    PyObject* kept; /* list, or NULL: what must live as long as this does, such as arrays */
    /* or NULL: of which this is a part. It is not freed while a call uses this */
    struct DdpHandle* lender;
} DdpHandle;

/* Adds the type to the module. Returns 0, or -1 with an exception. */
int ddp_py_add_handle(PyObject* module);

/* False, with an exception, in a process that was forked while libddp was in use. */
int ddp_py_may_call(void);

/* A new handle, or None for NULL. about: the object that the call was about (its first argument),
 * whose list of raised exceptions a new work shares. Takes ownership, also on failure. */
PyObject* ddp_py_own(const DdpKind* kind, void* pointer, uintptr_t about);
/* A handle for something that a callback is lent. */
PyObject* ddp_py_borrow(const DdpKind* kind, void* pointer);
/* A handle for a part of the lender, usable as long as that is. None for NULL. */
PyObject* ddp_py_lend(const DdpKind* kind, void* pointer, DdpHandle* lender);

/* The pointer inside `object` (NULL for None), which stays valid until ddp_py_leave(*held). False,
 * with an exception, for an object of another kind and for a closed handle. */
int ddp_py_enter(PyObject* object, const DdpKind* kind, DdpHandle** held, void** pointer);
void ddp_py_leave(DdpHandle* held);
/* The same for a sequence of handles. kind: NULL for any. */
int ddp_py_enter_list(PyObject* sequence, const DdpKind* kind, DdpHandle*** held, void*** list,
                      size_t* count);
void ddp_py_leave_list(DdpHandle** held, void** list, size_t count);

/* Frees what the handle owns, at once or when the calls in other threads that use it have returned.
 * NULL is allowed. */
void ddp_py_close(DdpHandle* handle);
/* Passes ownership of the pointer to libddp. NULL, with an exception, if it is of another kind,
 * closed, or in use. */
void* ddp_py_give_away(PyObject* object, const DdpKind* kind);

/* The handle that owns this pointer (borrowed reference), or NULL. */
DdpHandle* ddp_py_owner(uintptr_t pointer);

/* ddp_py_raise with the exceptions of callbacks of the object `about`. */
void ddp_py_raise_about(ddp_error* error, uintptr_t about);

/* While a callback runs on this thread: the list that new works share, or NULL. */
extern _Thread_local PyObject* ddp_py_running_raised;

/* A callback gets a bucket of this step: what callbacks were lent in earlier ones is void, and
 * their works use no arrays any more. borrows: of the callback's context. Returns 0, or -1 with an
 * exception. */
int ddp_py_end_steps_before(PyObject* borrows, int64_t step);

/* `list` made if it is NULL. A borrowed reference, or NULL with an exception. */
PyObject* ddp_py_list_at(PyObject** list);

#endif /* DDP_PYTHON_HANDLE_H */
