#include "unused.h"

#include <stdatomic.h>

static _Atomic(DdpCallback*) unused = NULL;

void ddp_py_callback_unused(void* callback) {
    DdpCallback* mine = callback;
    mine->next = atomic_load(&unused);
    while (!atomic_compare_exchange_weak(&unused, &mine->next, mine)) {
    }
}

void ddp_py_drop_unused_callbacks(void) {
    if (!atomic_load_explicit(&unused, memory_order_relaxed)) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    DdpCallback* each = atomic_exchange(&unused, NULL);
    while (each) {
        DdpCallback* next = each->next;
        Py_XDECREF(each->callable);
        Py_XDECREF(each->raised);
        Py_XDECREF(each->borrows);
        free(each);
        each = next;
    }
    PyErr_Restore(type, value, traceback);
}
