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
    if (strlen(format) == 1 && strchr("ilq", *format))
        return size == 4 ? DDP_I32 : size == 8 ? DDP_I64 : 0;
    return 0;
}

static int too_many_dimensions(int ndim) {
    if (ndim <= DDP_PY_MAX_DIMENSIONS) return 0;
    PyErr_Format(PyExc_ValueError, "the array has %d dimensions; at most %d are supported", ndim,
                 DDP_PY_MAX_DIMENSIONS);
    return 1;
}

static int refuse_type(const char* name) {
    PyErr_Format(PyExc_TypeError,
                 "the array's elements are %s; libddp has float16, bfloat16, float32, float64, "
                 "int32, int64, "
                 "uint8, complex64 and complex128, in this machine's byte order",
                 name);
    return -1;
}

/* DLPack's codes of types, and how many bits are part of the name: all, or those that the name has
 * already. */
static int refuse_dlpack(const DdpDlTensor* tensor) {
    static const char* const names[] = {"int",    "uint",    "float", "a handle of ",
                                        "bfloat", "complex", "bool"};
    static const char* const small[] = {"float8_e3m4",     "float8_e4m3",     "float8_e4m3b11fnuz",
                                        "float8_e4m3fn",   "float8_e4m3fnuz", "float8_e5m2",
                                        "float8_e5m2fnuz", "float8_e8m0fnu",  "float6_e2m3fn",
                                        "float6_e3m2fn",   "float4_e2m1fn"};
    enum { KNOWN = sizeof names / sizeof *names, SMALL = sizeof small / sizeof *small, BOOL = 6 };
    const int code = tensor->dtype.code, bits = tensor->dtype.bits;
    char name[64];
    if (code == BOOL)
        PyOS_snprintf(name, sizeof name, "bool");
    else if (code < KNOWN)
        PyOS_snprintf(name, sizeof name, "%s%d%s", names[code], bits,
                      tensor->dtype.lanes == 1 ? "" : ", several together");
    else if (code < KNOWN + SMALL)
        PyOS_snprintf(name, sizeof name, "%s", small[code - KNOWN]);
    else
        PyOS_snprintf(name, sizeof name, "of DLPack's type %d with %d bits", code, bits);
    return refuse_type(name);
}

/* The same of a format of the struct module. */
static int refuse_format(const char* format, Py_ssize_t size) {
    static const char* const names[] = {"?bool",         "bint8",   "hint16",  "Huint16",
                                        "Iuint32",       "Luint64", "Quint64", "glongdouble",
                                        "Zgclongdouble", "Oobject"};
    const char* letters = format ? format : "";
    const int foreign = *letters == '<' || *letters == '>' || *letters == '!';
    if (foreign || *letters == '@' || *letters == '=') ++letters;
    char name[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        const size_t length = names[i][0] == 'Z' ? 2 : 1;
        if (strlen(letters) == length && strncmp(letters, names[i], length) == 0) {
            PyOS_snprintf(name, sizeof name, "%s", names[i] + length);
            return refuse_type(name);
        }
    }
    if (foreign && dtype_of_format(letters, size))
        PyOS_snprintf(name, sizeof name, "in the byte order of another machine (format '%.20s')",
                      format);
    else
        PyOS_snprintf(name, sizeof name, "of %d bytes (format '%.20s')", (int)size,
                      format ? format : "");
    return refuse_type(name);
}

static const char* device_name(int kind) {
    switch (kind) {
        case 4:
            return "OpenCL";
        case 7:
            return "Vulkan";
        case 8:
            return "Metal";
        case 10:
        case 11:
            return "ROCm";
        case 13:
            return "CUDA, managed";
        case 14:
            return "oneAPI";
        default:
            return "unknown to libddp";
    }
}

static int refuse_order(void) {
    PyErr_SetString(PyExc_ValueError,
                    "the array is not contiguous in row-major order: pass a contiguous one, whose "
                    "memory libddp can use as it is");
    return -1;
}

static int describe_dlpack(DdpMemory* memory, const DdpDlTensor* tensor) {
    memory->dtype = dtype_of_dlpack(tensor);
    if (!memory->dtype) return refuse_dlpack(tensor);
    if (too_many_dimensions(tensor->ndim)) return -1;
    if (tensor->device.kind == DDP_DL_CUDA) {
        memory->device.kind = DDP_DEVICE_CUDA;
        memory->device.index = tensor->device.index;
    } else if (tensor->device.kind != DDP_DL_CPU && tensor->device.kind != DDP_DL_CUDA_HOST) {
        PyErr_Format(PyExc_TypeError,
                     "the array is on a device of DLPack's kind %d (%s); libddp takes memory of "
                     "the CPU and of CUDA",
                     (int)tensor->device.kind, device_name((int)tensor->device.kind));
        return -1;
    }
    memory->ndim = tensor->ndim;
    for (int i = 0; i < tensor->ndim; ++i) memory->shape[i] = (Py_ssize_t)tensor->shape[i];
    ddp_py_memory_lay_out(memory);
    const Py_ssize_t size = (Py_ssize_t)ddp_dtype_size(memory->dtype);
    for (int i = 0; tensor->strides && i < tensor->ndim && memory->count > 0; ++i)
        if (memory->shape[i] > 1 && tensor->strides[i] * size != memory->strides[i])
            return refuse_order();
    memory->address = (char*)tensor->data + tensor->byte_offset;
    return 1;
}

/* Whether an array without DLPack's word on it may be written: by what its buffer says, if it has
 * one. */
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
    if (!device || !PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &kind, &index))
        PyErr_Clear();
    Py_XDECREF(device);
    return kind == DDP_DL_CUDA;
}

/* For a GPU, asks for an array that is ready in the order of this stream: its library makes the
 * stream wait for the work that it has under way, wherever that is. */
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
    if (!PyObject_HasAttrString(array, "__dlpack__") ||
        PyObject_TypeCheck(array, Py_TYPE((PyObject*)memory)))
        return 0;
    PyObject* capsule = ask_for_capsule(array, stream);
    if (!capsule && PyObject_CheckBuffer(array)) {
        /* read-only arrays, for one, are exported only as buffers by some libraries */
        PyErr_Clear();
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
    if (!memory->dtype) return refuse_format(buffer->format, buffer->itemsize);
    if (too_many_dimensions(buffer->ndim)) return -1;
    if (!PyBuffer_IsContiguous(buffer, 'C')) return refuse_order();
    memory->ndim = buffer->ndim;
    for (int i = 0; i < buffer->ndim; ++i) memory->shape[i] = buffer->shape[i];
    memory->readonly = buffer->readonly;
    memory->address = buffer->buf;
    ddp_py_memory_lay_out(memory);
    return 1;
}
