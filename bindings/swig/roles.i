/* roles.i: what arguments are for, where their types do not say it.
 *
 * RESULTS. Single numbers that a function writes become what it returns, in every language (SWIG's own OUTPUT).
 */
%include <typemaps.i>
%apply int32_t* OUTPUT { int32_t* done, int32_t* used, int32_t* exists, int32_t* deleted, int32_t* found, int32_t* ranks, int32_t* devices, int32_t* norm, int32_t* level };
%apply uint32_t* OUTPUT { uint32_t* any, uint32_t* all };
%apply int32_t* OUTPUT { ddp_param* param, ddp_param* first };
%apply double* OUTPUT { double* value };
%apply int64_t* OUTPUT { int64_t* sum, int64_t* count, int64_t* begin, int64_t* end };

/* WHAT A LANGUAGE'S FILE DEFINES. Typemaps for these patterns; the names are those of the headers:
 *
 *   ddp_error** error                                   an exception with code, message, rank, param, bucket, step
 *   ddp_status                                          nothing, except of ddp_error_code, ddp_group_status and the like
 *   const void* or void* and size_t (value, size), (data, size), (expected, expected_size), (desired, desired_size)
 *                                                       bytes
 *   (void** value, size_t* size), (void** keys, size_t* size)    bytes that come back, freed with ddp_free
 *   (void** data, size_t* size)                         the same
 *   char** text                                         the same as text
 *   (const char* const* keys, size_t count)             a list of strings
 *   (const ddp_param* params, size_t count), (const int32_t* fragment_of, size_t count)    a list of numbers
 *   (const int64_t* periods, const int32_t* group_sizes, size_t count)     two lists, the second may be absent
 *   (const uint64_t* send_counts, const uint64_t* recv_counts, size_t n)    two lists, as long as each other
 *   (ddp_group* const* groups, size_t n)                a list of groups
 *   (const int64_t* extents, size_t count), (const uint64_t* caps, size_t count)    lists of numbers: structs.i
 *   (uint64_t* bytes, size_t capacity, size_t* count), (ddp_param* params, size_t capacity, size_t* count)
 *                                                       a list that comes back; capacity stays an argument
 *   void* and const void* elsewhere                     memory of the caller's: an address or a direct buffer
 *   const int64_t* indices (ddp_grad_ready_sparse)      the same
 *   void** view, void** memory                          memory of libddp's: an address
 *   const int64_t** indices, const void** values, size_t* count (ddp_sparse_gradient)    the same
 *   (FUNCTION fn, void* user_data, void (*destroy)(void* user_data)) for ddp_comm_hook_fn, ddp_bucket_fn, ddp_work_fn,
 *   ddp_buffer_hook_fn and ddp_reduced_fn               a function of the language's own
 *   const ddp_backend* backend                          the address of a table of C functions
 *
 * and the macros ddp_handle(TYPE, FREE) and ddp_borrowed_handle(TYPE), which handles.i calls for the opaque types.
 */
