/* export.h: symbol visibility and C linkage. Every public header starts here. */
#ifndef DDP_EXPORT_H
#define DDP_EXPORT_H

#if defined(_WIN32)
#error "libddp supports POSIX systems only"
#elif defined(__GNUC__)
#define DDP_API __attribute__((visibility("default")))
#else
#define DDP_API
#endif

#ifdef __cplusplus
#define DDP_EXTERN_C_BEGIN extern "C" {
#define DDP_EXTERN_C_END }
#else
#define DDP_EXTERN_C_BEGIN
#define DDP_EXTERN_C_END
#endif

#endif /* DDP_EXPORT_H */
