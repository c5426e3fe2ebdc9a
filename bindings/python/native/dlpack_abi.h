/* dlpack_abi.h: the memory layout of DLPack, version 0: the C structs in which Python's array
 * libraries hand arrays to each other, as the Python array API standard describes them. A capsule
 * named "dltensor" holds a pointer to DdpDlManaged; who takes it over renames it to "used_dltensor"
 * and calls `deleter` in the end. */
#ifndef DDP_PYTHON_DLPACK_ABI_H
#define DDP_PYTHON_DLPACK_ABI_H

#include <stdint.h>

enum { DDP_DL_CPU = 1, DDP_DL_CUDA = 2, DDP_DL_CUDA_HOST = 3 };
enum { DDP_DL_INT = 0, DDP_DL_UINT = 1, DDP_DL_FLOAT = 2, DDP_DL_BFLOAT = 4, DDP_DL_COMPLEX = 5 };
/* Values of `stream` for memory of CUDA, beside the address of a stream: None is the legacy default
 * stream, too. */
enum { DDP_DL_NO_ORDER = -1, DDP_DL_LEGACY_STREAM = 1 };

typedef struct DdpDlTensor {
    void* data;
    struct {
        int32_t kind;
        int32_t index;
    } device;
    int32_t ndim;
    struct {
        uint8_t code;
        uint8_t bits; /* of one element */
        uint16_t lanes;
    } dtype;
    int64_t* shape;
    int64_t* strides; /* in elements; NULL: contiguous, the last dimension fastest */
    uint64_t byte_offset;
} DdpDlTensor;

typedef struct DdpDlManaged {
    DdpDlTensor tensor;
    void* manager;
    void (*deleter)(struct DdpDlManaged* self);
} DdpDlManaged;

#endif /* DDP_PYTHON_DLPACK_ABI_H */
