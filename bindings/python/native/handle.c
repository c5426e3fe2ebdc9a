#include "handle.h"

#include <pthread.h>

#include "failure.h"
#include "unused.h"

#define KIND(TYPE, FREE)                     \
    static void free_##TYPE(void* pointer) { \
        FREE(pointer);                       \
    }                                        \
    const DdpKind ddp_py_##TYPE = {#TYPE, free_##TYPE}
KIND(ddp_store, ddp_store_free);
KIND(ddp_group, ddp_group_free);
KIND(ddp_work, ddp_work_free);
KIND(ddp_context, ddp_context_free);
KIND(ddp_averager, ddp_averager_free);
KIND(ddp_optimizer, ddp_optimizer_free);
KIND(ddp_elastic, ddp_elastic_free);
KIND(ddp_layout, ddp_layout_free);
KIND(ddp_error, ddp_error_free);
const DdpKind ddp_py_ddp_bucket = {"ddp_bucket", NULL};

static PyTypeObject* handle_type;
static PyObject* owners; /* dict: pointer -> address of its handle, which is in it while it lives */
_Thread_local PyObject* ddp_py_running_raised = NULL;

/* FORKS. Threads and sockets of libddp do not survive one. The child of a process that used libddp
 * may not use it. */
static unsigned era = 0; /* how often this process is the child of a fork */
static int in_use = 0;   /* a handle was made in this process */
static int forked_in_use = 0;

static void after_fork_in_child(void) {
    ++era;
    forked_in_use = forked_in_use || in_use;
}

int ddp_py_may_call(void) {
    if (!forked_in_use) return 1;
    ddp_py_fail(
        DDP_ERROR_INVALID_STATE,
        "this process was forked from one that used libddp, whose threads and connections do not "
        "survive a fork: "
        "start ranks with ddprun, or child processes with multiprocessing's method \"spawn\"");
    return 0;
}

PyObject* ddp_py_list_at(PyObject** list) {
    if (!*list) *list = PyList_New(0);
    return *list;
}

DdpHandle* ddp_py_owner(uintptr_t pointer) {
    PyObject* key = pointer ? PyLong_FromVoidPtr((void*)pointer) : NULL;
    PyObject* found = key ? PyDict_GetItemWithError(owners, key) : NULL;
    Py_XDECREF(key);
    return found ? (DdpHandle*)PyLong_AsVoidPtr(found) : NULL;
}

void ddp_py_raise_about(ddp_error* error, uintptr_t about) {
    const DdpHandle* handle = ddp_py_owner(about);
    ddp_py_raise(error, handle ? handle->raised : NULL);
}

static int enter_owner(DdpHandle* handle) {
    PyObject* key = PyLong_FromVoidPtr(handle->pointer);
    PyObject* value = PyLong_FromVoidPtr(handle);
    const int status = key && value ? PyDict_SetItem(owners, key, value) : -1;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return status;
}

static void remove_owner(const DdpHandle* handle) {
    PyObject* key = PyLong_FromVoidPtr(handle->pointer);
    if (key && ddp_py_owner((uintptr_t)handle->pointer) == handle) PyDict_DelItem(owners, key);
    Py_XDECREF(key);
    PyErr_Clear();
}

static DdpHandle* make(const DdpKind* kind, void* pointer) {
    DdpHandle* handle = PyObject_New(DdpHandle, handle_type);
    if (!handle) return NULL;
    handle->kind = kind;
    handle->pointer = pointer;
    handle->borrowed = kind->free == NULL;
    handle->calls = handle->closing = 0;
    handle->era = era;
    handle->step = 0;
    handle->lender = NULL;
    handle->raised = handle->borrows = handle->kept = NULL;
    return handle;
}

PyObject* ddp_py_own(const DdpKind* kind, void* pointer, uintptr_t about) {
    if (!pointer) Py_RETURN_NONE;
    DdpHandle* handle = make(kind, pointer);
    if (!handle || enter_owner(handle) != 0) {
        if (!handle) kind->free(pointer);
        Py_XDECREF((PyObject*)handle);
        return NULL;
    }
    in_use = in_use || kind != &ddp_py_ddp_error;
    if (kind == &ddp_py_ddp_work) {
        DdpHandle* parent = ddp_py_owner(about);
        handle->raised = ddp_py_running_raised ? ddp_py_running_raised
                         : parent              ? parent->raised
                                               : NULL;
        Py_XINCREF(handle->raised);
    }
    return (PyObject*)handle;
}

PyObject* ddp_py_borrow(const DdpKind* kind, void* pointer) {
    DdpHandle* handle = make(kind, pointer);
    if (handle) handle->borrowed = 1;
    return (PyObject*)handle;
}

PyObject* ddp_py_lend(const DdpKind* kind, void* pointer, DdpHandle* lender) {
    if (!pointer) Py_RETURN_NONE;
    DdpHandle* handle = (DdpHandle*)ddp_py_borrow(kind, pointer);
    if (!handle) return NULL;
    Py_INCREF((PyObject*)lender);
    handle->lender = lender;
    return (PyObject*)handle;
}

/* The object's own handle, if it is not one itself but has one: the classes of the package do.
 * kind: NULL for any. */
static DdpHandle* handle_of(PyObject* object, const DdpKind* kind) {
    DdpHandle* handle = NULL;
    if (Py_TYPE(object) == handle_type) {
        handle = (DdpHandle*)object;
    } else {
        PyObject* inside = PyObject_GetAttrString(object, "_handle");
        if (inside && Py_TYPE(inside) == handle_type) handle = (DdpHandle*)inside;
        Py_XDECREF(inside); /* `object` keeps it alive */
        PyErr_Clear();
    }
    if (handle && (!kind || handle->kind == kind)) return handle;
    PyErr_Format(PyExc_TypeError, "a %s is expected, not %R", kind ? kind->name + 4 : "handle",
                 Py_TYPE(object));
    return NULL;
}

static int is_open(const DdpHandle* handle) {
    return handle->pointer && !handle->closing && handle->era == era &&
           (!handle->lender || is_open(handle->lender));
}

static void fail_closed(const DdpHandle* handle) {
    char message[64];
    PyOS_snprintf(message, sizeof message, "the %s is closed", handle->kind->name + 4);
    ddp_py_fail(DDP_ERROR_INVALID_STATE, message);
}

static int check_usable(const DdpHandle* handle) {
    if (is_open(handle)) return 1;
    if (handle->era != era)
        ddp_py_may_call();
    else if (handle->borrowed && !handle->lender)
        ddp_py_fail(DDP_ERROR_INVALID_STATE,
                    "the callback's group or bucket is no longer valid: the step or the buffer "
                    "hook has ended");
    else
        fail_closed(handle);
    return 0;
}

int ddp_py_enter(PyObject* object, const DdpKind* kind, DdpHandle** held, void** pointer) {
    *pointer = NULL;
    if (object == Py_None) return 1;
    DdpHandle* handle = handle_of(object, kind);
    if (!handle || !check_usable(handle)) return 0;
    ++handle->calls;
    if (handle->lender) ++handle->lender->calls;
    Py_INCREF((PyObject*)handle);
    *held = handle;
    *pointer = handle->pointer;
    return 1;
}

/* Ends the validity of handles that callbacks were lent. Works that they passed on stay, and with
 * them the arrays of their operations. */
static void void_lent(PyObject* borrows) {
    for (Py_ssize_t i = 0; i < PyList_Size(borrows); ++i) {
        PyObject* each = PyList_GetItem(borrows, i);
        if (Py_TYPE(each) == handle_type && ((DdpHandle*)each)->borrowed)
            ((DdpHandle*)each)->pointer = NULL;
    }
}

static int drop_lent(PyObject* borrows) {
    void_lent(borrows);
    return PyList_SetSlice(borrows, 0, PyList_Size(borrows), NULL);
}

int ddp_py_end_steps_before(PyObject* borrows, int64_t step) {
    PyObject* first = PyList_Size(borrows) > 0 ? PyList_GetItem(borrows, 0) : NULL;
    const int earlier = first && Py_TYPE(first) == handle_type && ((DdpHandle*)first)->step < step;
    return earlier ? drop_lent(borrows) : 0;
}

/* Lets go of the lock meanwhile: it may wait for operations that callbacks belong to. */
static void free_now(DdpHandle* handle) {
    void* pointer = handle->pointer;
    if (!pointer) return;
    if (!handle->borrowed) remove_owner(handle);
    handle->pointer = NULL;
    if (!handle->borrowed && handle->era == era) {
        Py_BEGIN_ALLOW_THREADS handle->kind->free(pointer);
        Py_END_ALLOW_THREADS
    }
    Py_CLEAR(handle->kept);
    if (handle->borrows) drop_lent(handle->borrows);
    ddp_py_drop_unused_callbacks();
}

static void free_if_idle(DdpHandle* handle) {
    if (handle->closing && handle->calls == 0) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        free_now(handle);
        PyErr_Restore(type, value, traceback);
    }
}

void ddp_py_leave(DdpHandle* held) {
    ddp_py_drop_unused_callbacks();
    if (!held) return;
    --held->calls;
    free_if_idle(held);
    if (held->lender) {
        --held->lender->calls;
        free_if_idle(held->lender);
    }
    Py_DECREF((PyObject*)held);
}

int ddp_py_enter_list(PyObject* sequence, const DdpKind* kind, DdpHandle*** held, void*** list,
                      size_t* count) {
    PyObject* items = PySequence_Tuple(sequence);
    if (!items) return 0;
    const size_t wanted = (size_t)PyTuple_Size(items);
    *count = 0;
    *held = calloc(wanted + 1, sizeof **held);
    *list = calloc(wanted + 1, sizeof **list);
    int good = *held && *list;
    if (!good) PyErr_NoMemory();
    for (size_t i = 0; i < wanted && good; ++i) {
        good = ddp_py_enter(PyTuple_GetItem(items, (Py_ssize_t)i), kind, &(*held)[i], &(*list)[i]);
        if (good) ++*count;
    }
    Py_DECREF(items);
    return good;
}

void ddp_py_leave_list(DdpHandle** held, void** list, size_t count) {
    for (size_t i = 0; held && i < count; ++i) ddp_py_leave(held[i]);
    free(held);
    free(list);
}

void ddp_py_close(DdpHandle* handle) {
    if (!handle || !handle->pointer) return;
    handle->closing = 1;
    free_if_idle(handle);
}

void* ddp_py_give_away(PyObject* object, const DdpKind* kind) {
    DdpHandle* handle = handle_of(object, kind);
    if (!handle || !check_usable(handle)) return NULL;
    if (handle->calls > 0) {
        ddp_py_fail(DDP_ERROR_INVALID_STATE,
                    "the work that a callback returns is waited for in another thread");
        return NULL;
    }
    void* pointer = handle->pointer;
    remove_owner(handle);
    handle->pointer = NULL;
    return pointer;
}

/* METHODS, for the package's own files. */

static void dealloc(PyObject* self) {
    DdpHandle* handle = (DdpHandle*)self;
    PyTypeObject* type = Py_TYPE(self);
    ddp_py_close(handle);
    Py_CLEAR(handle->raised);
    Py_CLEAR(handle->borrows);
    Py_CLEAR(handle->kept);
    Py_XDECREF((PyObject*)handle->lender);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject* close_method(PyObject* self, PyObject* unused) {
    (void)unused;
    ddp_py_close((DdpHandle*)self);
    Py_RETURN_NONE;
}

static PyObject* keep_method(PyObject* self, PyObject* object) {
    PyObject* list = ddp_py_list_at(&((DdpHandle*)self)->kept);
    if (!list || PyList_Append(list, object) != 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject* forget_kept_method(PyObject* self, PyObject* unused) {
    (void)unused;
    Py_CLEAR(((DdpHandle*)self)->kept);
    Py_RETURN_NONE;
}

/* An operation of a step that failed may go on for a while. A later step or the end of the context
 * drops its arrays. */
static PyObject* end_step_method(PyObject* self, PyObject* well) {
    DdpHandle* handle = (DdpHandle*)self;
    if (handle->borrows) void_lent(handle->borrows);
    if (handle->borrows && PyObject_IsTrue(well) == 1 && drop_lent(handle->borrows) != 0)
        return NULL;
    if (handle->raised &&
        PyList_SetSlice(handle->raised, 0, PyList_Size(handle->raised), NULL) != 0)
        return NULL;
    Py_RETURN_NONE;
}

/* A context or an averager may be closed in another thread, or by mistake, but not under a call
 * that uses it and is not about it. */
static PyObject* call_with_method(PyObject* unused, PyObject* args) {
    PyObject *handles, *function, *arguments;
    (void)unused;
    if (!PyArg_ParseTuple(args, "OOO", &handles, &function, &arguments)) return NULL;
    DdpHandle** held = NULL;
    void** list = NULL;
    size_t count = 0;
    PyObject* result = NULL;
    if (ddp_py_enter_list(handles, NULL, &held, &list, &count))
        result = PyObject_CallObject(function, arguments);
    ddp_py_leave_list(held, list, count);
    return result;
}

/* ddp_grad_ready, called for every gradient of every step: without the detours of generated code.
 */
static PyObject* grad_ready_method(PyObject* self, PyObject* param) {
    DdpHandle* handle = (DdpHandle*)self;
    const long id = PyLong_AsLong(param);
    if (id == -1 && PyErr_Occurred()) return NULL;
    if (handle->kind != &ddp_py_ddp_context) {
        PyErr_SetString(PyExc_TypeError, "only a context has gradients");
        return NULL;
    }
    if (!check_usable(handle)) return NULL;
    ddp_error* error = NULL;
    ++handle->calls;
    Py_BEGIN_ALLOW_THREADS ddp_grad_ready(
        handle->pointer, id < INT32_MIN || id > INT32_MAX ? -1 : (ddp_param)id, &error);
    Py_END_ALLOW_THREADS-- handle->calls;
    if (error) {
        ddp_py_raise_about(error, (uintptr_t)handle->pointer);
        free_if_idle(handle);
        return NULL;
    }
    free_if_idle(handle);
    Py_RETURN_NONE;
}

static PyObject* open_getter(PyObject* self, void* unused) {
    const DdpHandle* handle = (const DdpHandle*)self;
    (void)unused;
    return PyBool_FromLong(is_open(handle));
}

static PyObject* repr(PyObject* self) {
    const DdpHandle* handle = (const DdpHandle*)self;
    return PyUnicode_FromFormat("<%s %p>", handle->kind->name, handle->pointer);
}

static PyObject* reduce_method(PyObject* self, PyObject* unused) {
    (void)self, (void)unused;
    PyErr_SetString(PyExc_TypeError,
                    "groups, contexts and other objects of ddp belong to their process: they can "
                    "be neither pickled nor "
                    "copied. Keep the arrays instead");
    return NULL;
}

static PyMethodDef methods[] = {
    {"close", close_method, METH_NOARGS, "Frees it; never waits for other ranks."},
    {"keep", keep_method, METH_O, "Keeps an object alive as long as this."},
    {"forget_kept", forget_kept_method, METH_NOARGS, "Lets go of the objects kept alive."},
    {"end_step", end_step_method, METH_O,
     "end_step(well): voids what callbacks were lent; if all went well, drops the works that they "
     "passed on."},
    {"call_with", call_with_method, METH_VARARGS | METH_STATIC,
     "call_with(handles, function, arguments): none of them is freed meanwhile."},
    {"__reduce__", reduce_method, METH_NOARGS, "Refuses pickle and copy."},
    {"grad_ready", grad_ready_method, METH_O,
     "grad_ready(param): this step's gradient of the parameter is complete."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef getters[] = {
    {"open", open_getter, NULL, "Whether it can be used.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, (void*)dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_repr, (void*)repr},
    {0, NULL},
};
static PyType_Spec spec = {"ddp._ddp.Handle", sizeof(DdpHandle), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

int ddp_py_add_handle(PyObject* module) {
    owners = PyDict_New();
    handle_type = (PyTypeObject*)PyType_FromSpec(&spec);
    if (!owners || !handle_type || pthread_atfork(NULL, NULL, after_fork_in_child) != 0) return -1;
    return PyModule_AddObjectRef(module, "Handle", (PyObject*)handle_type);
}
