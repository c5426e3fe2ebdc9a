#include "jax.h"

#include <string.h>

#include "interrupt.h"
#include "xla_ffi_abi.h"

/* Whether this is the name of a module of JAX. A new reference, or NULL with an exception, is taken
 * over. */
static int is_module_of_jax(PyObject* module) {
    const char* name =
        module && PyUnicode_Check(module) ? PyUnicode_AsUTF8AndSize(module, NULL) : NULL;
    if (!name) PyErr_Clear();
    const int found = name && (strcmp(name, "jax") == 0 || strncmp(name, "jax.", 4) == 0 ||
                               strncmp(name, "jaxlib.", 7) == 0);
    Py_XDECREF(module);
    return found;
}

int ddp_py_called_by_jax(void) {
    PyObject* globals = PyEval_GetGlobals(); /* of the Python function that called us */
    PyObject* name = globals ? PyDict_GetItemString(globals, "__name__") : NULL;
    Py_XINCREF(name);
    return is_module_of_jax(name);
}

int ddp_py_is_of_jax(PyObject* array) {
    PyObject* bases = PyObject_GetAttrString((PyObject*)Py_TYPE(array), "__mro__");
    const Py_ssize_t count = bases ? PyTuple_Size(bases) : 0;
    int found = 0;
    for (Py_ssize_t i = 0; !found && i < count; ++i)
        found = is_module_of_jax(PyObject_GetAttrString(PyTuple_GetItem(bases, i), "__module__"));
    Py_XDECREF(bases);
    PyErr_Clear();
    return found;
}

/* A FUNCTION OF JAX'S COMPILED CODE, with attributes `parallel` and `param`. It calls the Python
 * function on_call(parallel, param, arguments, results, stream), with the addresses of the buffers
 * and, on a GPU, that of XLA's stream, and otherwise None. That returns None, or a text that says
 * what went wrong.
 *
 * XLA captures no call into a command buffer whose function does not say that it may be: a replay
 * would not call it. */

static PyObject* on_call; /* NULL until the package has set it */

static int64_t attribute(const DdpXlaAttributes* all, const char* name) {
    for (int64_t i = 0; i < all->count; ++i) {
        const DdpXlaText* each = all->names[i];
        if (each->length != strlen(name) || memcmp(each->text, name, each->length) != 0) continue;
        const DdpXlaScalar* scalar = all->values[i];
        if (all->kinds[i] == DDP_XLA_SCALAR && scalar->dtype == DDP_XLA_S64)
            return *(const int64_t*)scalar->value;
    }
    return -1;
}

static DdpXlaError* error_of(const DdpXlaApi* api, const char* message) {
    DdpXlaErrorText text = {sizeof text, NULL, message, DDP_XLA_ABORTED};
    return api->create_error(&text);
}

static PyObject* addresses_of(const DdpXlaBuffers* all) {
    PyObject* addresses = PyTuple_New((Py_ssize_t)all->count);
    for (int64_t i = 0; addresses && i < all->count; ++i) {
        const DdpXlaBuffer* buffer = all->buffers[i];
        PyTuple_SetItem(addresses, (Py_ssize_t)i, PyLong_FromVoidPtr(buffer->data));
    }
    return addresses;
}

/* With the interpreter lock. stream: a new reference, or NULL with an exception. */
static DdpXlaError* pass_on(const DdpXlaCall* call, PyObject* stream) {
    PyObject* arguments = addresses_of(&call->arguments);
    PyObject* results = arguments ? addresses_of(&call->results) : NULL;
    PyObject* problem =
        results && stream
            ? PyObject_CallFunction(
                  on_call, "LLOOO", (long long)attribute(&call->attributes, "parallel"),
                  (long long)attribute(&call->attributes, "param"), arguments, results, stream)
            : NULL;
    if (!problem) problem = ddp_py_fetch_exception();
    PyObject* text = problem && problem != Py_None ? PyObject_Str(problem) : NULL;
    const char* message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    DdpXlaError* error =
        problem == Py_None ? NULL : error_of(call->api, message ? message : "an exception");
    Py_XDECREF(text);
    Py_XDECREF(problem);
    Py_XDECREF(arguments);
    Py_XDECREF(results);
    Py_XDECREF(stream);
    PyErr_Clear();
    return error;
}

static DdpXlaError* handle(const DdpXlaCall* call, int on_gpu) {
    for (DdpXlaExtension* each = call->extensions; each; each = each->next) {
        if (each->kind != DDP_XLA_METADATA) continue;
        DdpXlaVersion* version = &((DdpXlaMetadataExtension*)each)->metadata->version;
        version->major = DDP_XLA_MAJOR;
        version->minor =
            /* all that is used here is there since the first */
            call->api ? call->api->version.minor : DDP_XLA_MINOR;
        ((DdpXlaMetadataExtension*)each)->metadata->traits = 0;
        return NULL;
    }
    if (call->stage != DDP_XLA_EXECUTE) return NULL;
    if (!Py_IsInitialized()) return error_of(call->api, "Python has ended");
    DdpXlaStream stream = {sizeof stream, NULL, call->context, NULL};
    DdpXlaError* error = on_gpu ? call->api->get_stream(&stream) : NULL;
    if (error) return error;
    const PyGILState_STATE lock = PyGILState_Ensure();
    error = pass_on(call, on_gpu ? PyLong_FromVoidPtr(stream.stream) : Py_NewRef(Py_None));
    PyGILState_Release(lock);
    return error;
}

static DdpXlaError* handle_on_cpu(DdpXlaCall* call) {
    return handle(call, 0);
}
static DdpXlaError* handle_on_gpu(DdpXlaCall* call) {
    return handle(call, 1);
}

static PyObject* jax_target(PyObject* self, PyObject* args) {
    PyObject* callable;
    int on_gpu;
    (void)self;
    if (!PyArg_ParseTuple(args, "Op", &callable, &on_gpu)) return NULL;
    PyObject* previous = on_call;
    Py_INCREF(callable);
    on_call = callable;
    Py_XDECREF(previous);
    DdpXlaError* (*const function)(DdpXlaCall*) = on_gpu ? handle_on_gpu : handle_on_cpu;
    void* address;
    memcpy(&address, &function, sizeof address); /* C has no cast for it */
    return PyCapsule_New(address, NULL, NULL);
}

static PyMethodDef functions[] = {
    {"jax_target", jax_target, METH_VARARGS,
     "jax_target(on_call, on_gpu): a function for jax.ffi.register_ffi_target that calls on_call("
     "parallel, param, arguments, results, stream)."},
    {NULL, NULL, 0, NULL},
};

int ddp_py_add_jax(PyObject* module) {
    return PyModule_AddFunctions(module, functions);
}
