/* xla_ffi_abi.h: the part of XLA's foreign function interface, version 0 of its C ABI, that a
 * handler needs which reads its arguments, asks for its stream, and gives an error or nothing. JAX calls such handlers
 * from compiled functions. XLA keeps old structs working for a year at least, adds fields at their
 * ends only, and asks a handler for its version before the first call. */
#ifndef DDP_PYTHON_XLA_FFI_ABI_H
#define DDP_PYTHON_XLA_FFI_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { DDP_XLA_MAJOR = 0, DDP_XLA_MINOR = 1 };
enum { DDP_XLA_METADATA = 1 }; /* kind of an extension */
enum { DDP_XLA_SCALAR = 3 };   /* kind of an attribute */
enum { DDP_XLA_S64 = 5 };      /* type of a scalar */
enum { DDP_XLA_EXECUTE = 3 };  /* stage of a call */
enum { DDP_XLA_ABORTED = 10 }; /* code of an error */

typedef struct DdpXlaExtension {
    size_t struct_size;
    int kind;
    struct DdpXlaExtension* next;
} DdpXlaExtension;

typedef struct DdpXlaVersion {
    size_t struct_size;
    DdpXlaExtension* extensions;
    int major, minor;
} DdpXlaVersion;

/* With this extension XLA asks for the handler's version instead of calling it. */
typedef struct DdpXlaMetadataExtension {
    DdpXlaExtension base;
    struct {
        size_t struct_size;
        DdpXlaVersion version;
        uint32_t traits;
    } * metadata;
} DdpXlaMetadataExtension;

typedef struct DdpXlaError DdpXlaError;

typedef struct DdpXlaErrorText {
    size_t struct_size;
    DdpXlaExtension* extensions;
    const char* message; /* copied */
    int code;
} DdpXlaErrorText;

typedef struct DdpXlaStream {
    size_t struct_size;
    DdpXlaExtension* extensions;
    void* context; /* of the call */
    void* stream;  /* out: for CUDA a CUstream */
} DdpXlaStream;

typedef struct DdpXlaApi {
    size_t struct_size;
    DdpXlaExtension* extensions;
    DdpXlaVersion version;
    const void* internal;
    DdpXlaError* (*create_error)(DdpXlaErrorText* text);
    void (*get_message)(void); /* not used here */
    void (*destroy_error)(void);
    void (*register_handler)(void);
    DdpXlaError* (*get_stream)(DdpXlaStream* stream);
} DdpXlaApi;

typedef struct DdpXlaBuffer {
    size_t struct_size;
    DdpXlaExtension* extensions;
    int dtype;
    void* data;
    int64_t ndim;
    int64_t* shape;
} DdpXlaBuffer;

typedef struct DdpXlaScalar {
    int dtype;
    void* value;
} DdpXlaScalar;

typedef struct DdpXlaText {
    const char* text; /* not terminated */
    size_t length;
} DdpXlaText;

typedef struct DdpXlaBuffers {
    size_t struct_size;
    DdpXlaExtension* extensions;
    int64_t count;
    int* kinds;
    void** buffers;
} DdpXlaBuffers;

/* Sorted by name. */
typedef struct DdpXlaAttributes {
    size_t struct_size;
    DdpXlaExtension* extensions;
    int64_t count;
    int* kinds;
    DdpXlaText** names;
    void** values;
} DdpXlaAttributes;

typedef struct DdpXlaCall {
    size_t struct_size;
    DdpXlaExtension* extensions;
    const DdpXlaApi* api;
    void* context;
    int stage;
    DdpXlaBuffers arguments, results;
    DdpXlaAttributes attributes;
} DdpXlaCall;

#endif /* DDP_PYTHON_XLA_FFI_ABI_H */
