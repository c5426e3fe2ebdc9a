/* unused.h: Python functions that libddp no longer needs. It says so on any thread; they are
 * dropped on one that has the interpreter lock. */
#ifndef DDP_PYTHON_UNUSED_H
#define DDP_PYTHON_UNUSED_H

#include "base.h"

typedef struct DdpCallback {
    PyObject* callable;
    PyObject* raised; /* list: where an exception waits for the call that it comes out of */
    /* list: what the callable was lent, and works that it has passed on */
    PyObject* borrows;
    struct DdpCallback* next; /* among the unused */
} DdpCallback;

/* The `destroy` of libddp's functions: on any thread, without the lock. The next call that holds
 * the lock drops the objects that it held: ddp_py_drop_unused_callbacks. */
void ddp_py_callback_unused(void* callback);
void ddp_py_drop_unused_callbacks(void);

#endif /* DDP_PYTHON_UNUSED_H */
