#include "failure.h"

#include "interrupt.h"

static PyObject* factory; /* NULL until the package has set it */

static PyObject* exception_of(ddp_status status, const char* message, const ddp_error* about) {
    if (!factory) return PyObject_CallFunction(PyExc_RuntimeError, "s", message);
    return PyObject_CallFunction(factory, "isiiiL", (int)status, message,
                                 (int)ddp_error_rank(about), (int)ddp_error_param(about),
                                 (int)ddp_error_bucket(about), (long long)ddp_error_step(about));
}

static void raise_exception(PyObject* exception) {
    if (exception) PyErr_SetObject((PyObject*)Py_TYPE(exception), exception);
    Py_XDECREF(exception);
}

/* The first exception in the list: a new reference, or NULL. */
static PyObject* take_first(PyObject* list) {
    if (!list || PyList_Size(list) == 0) return NULL;
    PyObject* first = PyList_GetItem(list, 0);
    Py_INCREF(first);
    if (PyList_SetSlice(list, 0, PyList_Size(list), NULL) != 0) PyErr_Clear();
    return first;
}

/* The exception of a signal handler comes first; libddp's error only says where that happened. */
static int raise_interrupt(ddp_error* error) {
    PyObject* interrupt = ddp_py_take_interrupt();
    if (!interrupt) return 0;
    PyObject* context =
        error ? exception_of(ddp_error_code(error), ddp_error_message(error), error) : NULL;
    ddp_error_free(error);
    if (context)
        PyException_SetContext(interrupt, context); /* takes the reference */
    else
        PyErr_Clear();
    raise_exception(interrupt);
    return 1;
}

void ddp_py_raise(ddp_error* error, PyObject* of_callbacks) {
    if (raise_interrupt(error)) return;
    PyObject* raised = take_first(of_callbacks);
    PyObject* exception = exception_of(ddp_error_code(error), ddp_error_message(error), error);
    ddp_error_free(error);
    if (raised && exception && raised != exception) {
        PyException_SetCause(raised, exception); /* takes the reference */
        exception = raised;
    } else {
        Py_XDECREF(raised);
    }
    raise_exception(exception);
}

void ddp_py_fail(ddp_status status, const char* message) {
    raise_exception(exception_of(status, message, NULL));
}

/* An error of libddp's that came out of a call inside the callback stays what it is. */
static ddp_status status_of(PyObject* exception) {
    PyObject* value = PyObject_GetAttrString(exception, "status");
    const long status = value && PyLong_Check(value) ? PyLong_AsLong(value) : 0;
    Py_XDECREF(value);
    PyErr_Clear();
    return status < 0 && status >= DDP_ERROR_NONFINITE ? (ddp_status)status : DDP_ERROR_CALLBACK;
}

ddp_status ddp_py_keep_exception(PyObject* list, ddp_error** error) {
    PyObject* value = ddp_py_fetch_exception();
    const ddp_status status = status_of(value);
    PyObject* name = PyObject_GetAttrString((PyObject*)Py_TYPE(value), "__name__");
    PyObject* text = name ? PyUnicode_FromFormat("%S: %S", name, value) : NULL;
    const char* message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (error) *error = ddp_error_create(status, message ? message : "an exception");
    Py_XDECREF(text);
    Py_XDECREF(name);
    if (list) PyList_Append(list, value);
    PyErr_Clear();
    Py_XDECREF(value);
    return status;
}

static PyObject* set_factory(PyObject* self, PyObject* callable) {
    (void)self;
    PyObject* previous = factory;
    Py_INCREF(callable);
    factory = callable;
    Py_XDECREF(previous);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_error_factory", set_factory, METH_O, "What makes exceptions of errors."},
    {NULL, NULL, 0, NULL},
};

int ddp_py_add_failure(PyObject* module) {
    return PyModule_AddFunctions(module, functions);
}
