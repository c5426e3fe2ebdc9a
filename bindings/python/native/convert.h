/* convert.h: lists, bytes and addresses between Python and C. Functions that return int give 1, or
 * 0 with an exception; lists that they make are freed by the caller with free(). */
#ifndef DDP_PYTHON_CONVERT_H
#define DDP_PYTHON_CONVERT_H

#include "base.h"

int ddp_py_int32_list(PyObject* sequence, int32_t** list, size_t* count);
int ddp_py_int64_list(PyObject* sequence, int64_t** list, size_t* count);
/* (periods, group_sizes or None), as long as each other. */
int ddp_py_hierarchy(PyObject* pair, int64_t** periods, int32_t** sizes, size_t* count);
/* (send_counts, recv_counts), as long as each other. */
int ddp_py_counts(PyObject* pair, int64_t** sent, int64_t** received, size_t* count);
/* Strings borrowed from the sequence's items. */
int ddp_py_text_list(PyObject* sequence, const char*** list, size_t* count);
PyObject* ddp_py_int32_result(const int32_t* list, size_t count);
PyObject* ddp_py_uint64_result(const uint64_t* list, size_t count);
/* Room for so many elements of this size. */
int ddp_py_capacity(PyObject* number, size_t size, void** list, size_t* capacity);

/* None, or anything with contiguous bytes. Release with PyBuffer_Release. */
int ddp_py_bytes(PyObject* object, Py_buffer* bytes);

/* An address: an integer; 0 or None for NULL. */
int ddp_py_address(PyObject* object, void** address);
PyObject* ddp_py_from_address(const void* address);

#endif /* DDP_PYTHON_CONVERT_H */
