#include "convert.h"

#include <string.h>

int ddp_py_int64_list(PyObject* sequence, int64_t** list, size_t* count) {
    PyObject* items = PySequence_Tuple(sequence);
    if (!items) return 0;
    *count = (size_t)PyTuple_Size(items);
    *list = malloc((*count + 1) * sizeof **list);
    if (!*list) PyErr_NoMemory();
    for (size_t i = 0; *list && i < *count; ++i)
        (*list)[i] = PyLong_AsLongLong(PyTuple_GetItem(items, (Py_ssize_t)i));
    Py_DECREF(items);
    return !PyErr_Occurred();
}

int ddp_py_int32_list(PyObject* sequence, int32_t** list, size_t* count) {
    int64_t* wide = NULL;
    int good = ddp_py_int64_list(sequence, &wide, count);
    *list = good ? malloc((*count + 1) * sizeof **list) : NULL;
    for (size_t i = 0; *list && i < *count && good; ++i) {
        (*list)[i] = (int32_t)wide[i];
        good = (*list)[i] == wide[i];
    }
    free(wide);
    if (!good && !PyErr_Occurred())
        PyErr_SetString(PyExc_OverflowError, "a number does not fit 32 bits");
    if (good && !*list) PyErr_NoMemory();
    return good && *list != NULL;
}

int ddp_py_hierarchy(PyObject* pair, int64_t** periods, int32_t** sizes, size_t* count) {
    PyObject *first, *second;
    size_t second_count;
    if (!PyArg_ParseTuple(pair, "OO", &first, &second) || !ddp_py_int64_list(first, periods, count))
        return 0;
    if (second == Py_None) return 1;
    if (!ddp_py_int32_list(second, sizes, &second_count)) return 0;
    if (second_count == *count) return 1;
    PyErr_SetString(PyExc_ValueError, "there must be as many group sizes as periods");
    return 0;
}

int ddp_py_counts(PyObject* pair, int64_t** sent, int64_t** received, size_t* count) {
    PyObject *first, *second;
    size_t second_count;
    if (!PyArg_ParseTuple(pair, "OO", &first, &second) || !ddp_py_int64_list(first, sent, count) ||
        !ddp_py_int64_list(second, received, &second_count))
        return 0;
    if (second_count == *count) return 1;
    PyErr_SetString(PyExc_ValueError, "there must be as many recv_counts as send_counts");
    return 0;
}

int ddp_py_text_list(PyObject* sequence, const char*** list, size_t* count) {
    if (!PyList_Check(sequence) && !PyTuple_Check(sequence)) {
        PyErr_SetString(PyExc_TypeError, "a list of strings is expected");
        return 0;
    }
    PyObject* items = PySequence_Tuple(sequence);
    if (!items) return 0;
    *count = (size_t)PyTuple_Size(items);
    *list = malloc((*count + 1) * sizeof **list);
    if (!*list) PyErr_NoMemory();
    /* The strings belong to the items, which the caller's list keeps alive during the call. */
    for (size_t i = 0; *list && i < *count; ++i) {
        (*list)[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(items, (Py_ssize_t)i), NULL);
        if (!(*list)[i]) break;
    }
    Py_DECREF(items);
    return !PyErr_Occurred();
}

PyObject* ddp_py_int32_result(const int32_t* list, size_t count) {
    PyObject* result = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; result && i < count; ++i)
        PyList_SetItem(result, (Py_ssize_t)i, PyLong_FromLong(list[i]));
    return result;
}

PyObject* ddp_py_uint64_result(const uint64_t* list, size_t count) {
    PyObject* result = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; result && i < count; ++i)
        PyList_SetItem(result, (Py_ssize_t)i, PyLong_FromUnsignedLongLong(list[i]));
    return result;
}

int ddp_py_capacity(PyObject* number, size_t size, void** list, size_t* capacity) {
    *capacity = PyLong_AsSize_t(number);
    if (PyErr_Occurred()) return 0;
    *list = calloc(*capacity + 1, size);
    return *list != NULL || PyErr_NoMemory() != NULL;
}

int ddp_py_bytes(PyObject* object, Py_buffer* bytes) {
    return object == Py_None || PyObject_GetBuffer(object, bytes, PyBUF_SIMPLE) == 0;
}

int ddp_py_address(PyObject* object, void** address) {
    *address = object == Py_None ? NULL : PyLong_AsVoidPtr(object);
    return !PyErr_Occurred();
}

PyObject* ddp_py_from_address(const void* address) {
    return PyLong_FromUnsignedLongLong((uintptr_t)address);
}
