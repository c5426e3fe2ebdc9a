/* memory.h: direct buffers and addresses. */
#ifndef DDP_JAVA_MEMORY_H
#define DDP_JAVA_MEMORY_H

#include <jni.h>
#include <stdint.h>

/* Where a buffer's memory begins, whatever its position; NULL for one on the heap. */
void* ddp_java_address(JNIEnv* env, jobject buffer);
/* A ByteBuffer over memory of libddp's, which the caller keeps. */
jobject ddp_java_show(JNIEnv* env, void* memory, int64_t bytes);
void ddp_java_copy(void* to, const void* from, int64_t bytes);

#endif /* DDP_JAVA_MEMORY_H */
