#include "take.h"

#include <string.h>

#include "jax.h"

static ddp_dtype dtype_of_dlpack(const DdpDlTensor* tensor) {
    const int bits = tensor->dtype.bits;
    if (tensor->dtype.lanes != 1) return 0;
    switch (tensor->dtype.code) {
        case DDP_DL_FLOAT:
            return bits == 16 ? DDP_F16 : bits == 32 ? DDP_F32 : bits == 64 ? DDP_F64 : 0;
        case DDP_DL_BFLOAT:
            return bits == 16 ? DDP_BF16 : 0;
        case DDP_DL_INT:
            return bits == 32 ? DDP_I32 : bits == 64 ? DDP_I64 : 0;
        case DDP_DL_UINT:
            return bits == 8 ? DDP_U8 : 0;
        case DDP_DL_COMPLEX:
            return bits == 64 ? DDP_C64 : bits == 128 ? DDP_C128 : 0;
        default:
            return 0;
    }
}

/* The letters of the struct module, in this machine's byte order. */
static ddp_dtype dtype_of_format(const char* format, Py_ssize_t size) {
    if (!format) return size == 1 ? DDP_U8 : 0;
    if (*format == '@' || *format == '=' || *format == (PY_BIG_ENDIAN ? '>' : '<')) ++format;
    if (strcmp(format, "e") == 0) return DDP_F16;
    if (strcmp(format, "f") == 0) return DDP_F32;
    if (strcmp(format, "d") == 0) return DDP_F64;
    if (strcmp(format, "Zf") == 0) return DDP_C64;
    if (strcmp(format, "Zd") == 0) return DDP_C128;
    if (strcmp(format, "B") == 0) return DDP_U8;
    if (strlen(format) == 1 && strchr("ilq", *format)) return size == 4 ? DDP_I32 : size == 8 ? DDP_I64 : 0;
    return 0;
}

static int too_many_dimensions(int ndim) {
    if (ndim <= DDP_PY_MAX_DIMENSIONS) return 0;
    PyErr_Format(PyExc_ValueError, "the array has %d dimensions; at most %d are supported", ndim,
                 DDP_PY_MAX_DIMENSIONS);
    return 1;
}

static int refuse_type(const char* what) {
    PyErr_Format(PyExc_TypeError,
                 "the array's type%s is not supported: float16, bfloat16, float32, float64, int32, int64, "
                 "uint8, complex64 and complex128 are, in this machine's byte order",
                 what);
    return -1;
}

static int refuse_order(void) {
    PyErr_SetString(PyExc_ValueError,
                    "the array is not contiguous in row-major order: pass a contiguous one, whose "
                    "memory libddp can use as it is");
    return -1;
}

static int describe_dlpack(DdpMemory* memory, const DdpDlTensor* tensor) {
    memory->dtype = dtype_of_dlpack(tensor);
    if (!memory->dtype) return refuse_type("");
    if (too_many_dimensions(tensor->ndim)) return -1;
    if (tensor->device.kind == DDP_DL_CUDA) {
        memory->device.kind = DDP_DEVICE_CUDA;
        memory->device.index = tensor->device.index;
    } else if (tensor->device.kind != DDP_DL_CPU && tensor->device.kind != DDP_DL_CUDA_HOST) {
        PyErr_Format(PyExc_TypeError, "the array is on a device of DLPack's kind %d; the CPU's memory is supported",
                     (int)tensor->device.kind);
        return -1;
    }
    memory->ndim = tensor->ndim;
    for (int i = 0; i < tensor->ndim; ++i) memory->shape[i] = (Py_ssize_t)tensor->shape[i];
    ddp_py_memory_lay_out(memory);
    const Py_ssize_t size = (Py_ssize_t)ddp_dtype_size(memory->dtype);
    for (int i = 0; tensor->strides && i < tensor->ndim && memory->count > 0; ++i)
        if (memory->shape[i] > 1 && tensor->strides[i] * size != memory->strides[i]) return refuse_order();
    memory->address = (char*)tensor->data + tensor->byte_offset;
    return 1;
}

/* Whether an array without DLPack's word on it may be written: by what its buffer says, if it has one. */
static int find_readonly(DdpMemory* memory, PyObject* array) {
    Py_buffer buffer;
    memory->readonly = ddp_py_is_of_jax(array);
    if (memory->readonly || !PyObject_CheckBuffer(array)) return 0;
    if (PyObject_GetBuffer(array, &buffer, PyBUF_FULL_RO) != 0) {
        PyErr_Clear(); /* its type has no letter; DLPack knew it */
        return 0;
    }
    memory->readonly = buffer.readonly;
    PyBuffer_Release(&buffer);
    return 0;
}

/* Whether the array says that it is on a GPU. */
static int is_on_gpu(PyObject* array) {
    int kind = DDP_DL_CPU, index = 0;
    PyObject* device = PyObject_CallMethod(array, "__dlpack_device__", NULL);
    if (!device || !PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &kind, &index)) PyErr_Clear();
    Py_XDECREF(device);
    return kind == DDP_DL_CUDA;
}

/* Of a GPU, asks for an array that is ready in the order of this stream: its library makes the stream wait for what it has
 * under way, wherever that is. */
static PyObject* ask_for_capsule(PyObject* array, unsigned long long number) {
    if (!is_on_gpu(array)) return PyObject_CallMethod(array, "__dlpack__", NULL);
    PyObject* method = PyObject_GetAttrString(array, "__dlpack__");
    PyObject* none = PyTuple_New(0);
    PyObject* stream = Py_BuildValue("{s:K}", "stream", number);
    PyObject* capsule = method && none && stream ? PyObject_Call(method, none, stream) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(stream);
    return capsule;
}

int ddp_py_take_dlpack(DdpMemory* memory, PyObject* array, unsigned long long stream) {
    if (!PyObject_HasAttrString(array, "__dlpack__") || PyObject_TypeCheck(array, Py_TYPE((PyObject*)memory))) return 0;
    PyObject* capsule = ask_for_capsule(array, stream);
    if (!capsule && PyObject_CheckBuffer(array)) {
        PyErr_Clear(); /* read-only arrays, for one, are exported only as buffers by some libraries */
        return 0;
    }
    if (!capsule) return -1;
    DdpDlManaged* tensor = PyCapsule_GetPointer(capsule, "dltensor");
    if (!tensor || PyCapsule_SetName(capsule, "used_dltensor") != 0) {
        Py_DECREF(capsule);
        return -1;
    }
    Py_DECREF(capsule);
    memory->tensor = tensor;
    const int status = describe_dlpack(memory, &tensor->tensor);
    return status == 1 && find_readonly(memory, array) != 0 ? -1 : status;
}

int ddp_py_take_buffer(DdpMemory* memory, PyObject* array) {
    if (!PyObject_CheckBuffer(array)) return 0;
    if (PyObject_GetBuffer(array, &memory->buffer, PyBUF_FULL_RO) != 0) return -1;
    const Py_buffer* buffer = &memory->buffer;
    memory->dtype = dtype_of_format(buffer->format, buffer->itemsize);
    if (!memory->dtype) {
        char name[40];
        PyOS_snprintf(name, sizeof name, " (format '%.20s')", buffer->format ? buffer->format : "");
        return refuse_type(name);
    }
    if (too_many_dimensions(buffer->ndim)) return -1;
    if (!PyBuffer_IsContiguous(buffer, 'C')) return refuse_order();
    memory->ndim = buffer->ndim;
    for (int i = 0; i < buffer->ndim; ++i) memory->shape[i] = buffer->shape[i];
    memory->readonly = buffer->readonly;
    memory->address = buffer->buf;
    ddp_py_memory_lay_out(memory);
    return 1;
}
