#include "callbacks.h"

#include "failure.h"

static PyObject* new_or_shared(PyObject* shared) {
    if (shared) Py_INCREF(shared);
    return shared ? shared : PyList_New(0);
}

int ddp_py_callback(PyObject* callable, uintptr_t about, DdpCallback** callback) {
    *callback = NULL;
    if (callable == Py_None) return 1;
    if (!PyCallable_Check(callable)) {
        PyErr_Format(PyExc_TypeError, "a callable or None is expected, not %R", Py_TYPE(callable));
        return 0;
    }
    DdpHandle* handle = ddp_py_owner(about);
    DdpCallback* made = calloc(1, sizeof *made);
    if (!made) return PyErr_NoMemory() != NULL;
    made->raised = new_or_shared(handle ? ddp_py_list_at(&handle->raised) : NULL);
    made->borrows = new_or_shared(handle ? ddp_py_list_at(&handle->borrows) : NULL);
    Py_INCREF(callable);
    made->callable = callable;
    *callback = made;
    return 1;
}

/* A thread inside a callback: with the lock, and with the list that works made meanwhile share. */
typedef struct Running {
    PyGILState_STATE lock;
    PyObject* outer;
    DdpCallback* callback;
} Running;

static Running begin(void* user_data) {
    Running running = {PyGILState_Ensure(), ddp_py_running_raised, user_data};
    ddp_py_running_raised = running.callback->raised;
    return running;
}

/* result: of the callable, or NULL with an exception; taken over. */
static ddp_status end(Running running, PyObject* result, ddp_error** error) {
    const ddp_status status =
        result ? DDP_OK : ddp_py_keep_exception(running.callback->raised, error);
    Py_XDECREF(result);
    ddp_py_running_raised = running.outer;
    PyGILState_Release(running.lock);
    return status;
}

/* A handle for what the callable is lent, void at the end of the step. A new reference. */
static PyObject* lend(const DdpCallback* callback, const DdpKind* kind, void* pointer,
                      int64_t step) {
    PyObject* handle = ddp_py_borrow(kind, pointer);
    if (handle) ((DdpHandle*)handle)->step = step;
    if (handle && PyList_Append(callback->borrows, handle) != 0) Py_CLEAR(handle);
    return handle;
}

/* Passes on the result of a callable: nothing, or a work that libddp takes over. Its handle stays
 * among the borrowed ones, because it keeps the arrays alive that the operation uses. Returns
 * `result`, or NULL with an exception. */
static PyObject* pass_on(const DdpCallback* callback, PyObject* result, ddp_work** work) {
    if (!result || result == Py_None) return result;
    void* pointer = ddp_py_give_away(result, &ddp_py_ddp_work);
    if (pointer) *work = pointer;
    if (!pointer || PyList_Append(callback->borrows, result) != 0) Py_CLEAR(result);
    return result;
}

static PyObject* call_with_bucket(const DdpCallback* callback, ddp_group* group,
                                  ddp_bucket* bucket) {
    const int64_t step = ddp_bucket_step(bucket);
    if (ddp_py_end_steps_before(callback->borrows, step) != 0) return NULL;
    PyObject* lent_group = lend(callback, &ddp_py_ddp_group, group, step);
    PyObject* lent_bucket = lent_group ? lend(callback, &ddp_py_ddp_bucket, bucket, step) : NULL;
    PyObject* result = NULL;
    if (lent_bucket)
        result = PyObject_CallFunctionObjArgs(callback->callable, lent_group, lent_bucket, NULL);
    Py_XDECREF(lent_group);
    Py_XDECREF(lent_bucket);
    return result;
}

ddp_status ddp_py_call_ddp_comm_hook_fn(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                        ddp_work** work, ddp_error** error) {
    const Running running = begin(user_data);
    PyObject* result = call_with_bucket(running.callback, group, bucket);
    return end(running, pass_on(running.callback, result, work), error);
}

ddp_status ddp_py_call_ddp_bucket_fn(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                     ddp_error** error) {
    const Running running = begin(user_data);
    return end(running, call_with_bucket(running.callback, group, bucket), error);
}

ddp_status ddp_py_call_ddp_work_fn(void* user_data, ddp_work** next, ddp_error** error) {
    const Running running = begin(user_data);
    PyObject* result = PyObject_CallNoArgs(running.callback->callable);
    return end(running, pass_on(running.callback, result, next), error);
}

static PyObject* describe(const ddp_tensor* tensor) {
    PyObject* shape = PyTuple_New(tensor->ndim);
    for (int32_t i = 0; shape && i < tensor->ndim; ++i)
        PyTuple_SetItem(shape, i, PyLong_FromLongLong(tensor->shape[i]));
    if (!shape) return NULL;
    return Py_BuildValue("(NNi)", PyLong_FromVoidPtr(tensor->data), shape, (int)tensor->dtype);
}

ddp_status ddp_py_call_ddp_buffer_hook_fn(void* user_data, ddp_group* group,
                                          const ddp_tensor* const* buffers, size_t count,
                                          ddp_error** error) {
    const Running running = begin(user_data);
    PyObject* list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; ++i) {
        PyObject* item = describe(buffers[i]);
        if (item)
            PyList_SetItem(list, (Py_ssize_t)i, item);
        else
            Py_CLEAR(list);
    }
    PyObject* lent_group = list ? ddp_py_borrow(&ddp_py_ddp_group, group) : NULL;
    PyObject* result = NULL;
    if (lent_group) {
        result = PyObject_CallFunctionObjArgs(running.callback->callable, lent_group, list, NULL);
        ((DdpHandle*)lent_group)->pointer = NULL; /* libddp has it only during the call */
    }
    Py_XDECREF(lent_group);
    Py_XDECREF(list);
    return end(running, result, error);
}

ddp_status ddp_py_call_ddp_reduced_fn(void* user_data, ddp_param param, int32_t used,
                                      ddp_error** error) {
    const Running running = begin(user_data);
    PyObject* result = PyObject_CallFunction(running.callback->callable, "iO", (int)param,
                                             used ? Py_True : Py_False);
    return end(running, result, error);
}
