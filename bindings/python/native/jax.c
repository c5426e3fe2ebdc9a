#include "jax.h"

#include <string.h>

/* Whether this is the name of a module of JAX. A new reference, or NULL with an exception, is taken over. */
static int is_module_of_jax(PyObject* module) {
    const char* name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : NULL;
    if (!name) PyErr_Clear();
    const int found =
        name && (strcmp(name, "jax") == 0 || strncmp(name, "jax.", 4) == 0 || strncmp(name, "jaxlib.", 7) == 0);
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
    PyObject* bases = Py_TYPE(array)->tp_mro;
    int found = 0;
    for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(bases); ++i)
        found = is_module_of_jax(PyObject_GetAttrString(PyTuple_GET_ITEM(bases, i), "__module__"));
    return found;
}
