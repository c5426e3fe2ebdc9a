#include "memory.h"

#include <string.h>

void* ddp_java_address(JNIEnv* env, jobject buffer) {
    return (*env)->GetDirectBufferAddress(env, buffer);
}

jobject ddp_java_show(JNIEnv* env, void* memory, int64_t bytes) {
    return (*env)->NewDirectByteBuffer(env, memory, bytes);
}

void ddp_java_copy(void* to, const void* from, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
}
