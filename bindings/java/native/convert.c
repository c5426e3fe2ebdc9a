#include "convert.h"

#include <stdlib.h>

#include "failure.h"

/* malloc that throws; never for 0 bytes. */
static void* allocate(JNIEnv* env, size_t count, size_t size) {
    void* memory = calloc(count + 1, size);
    if (!memory)
        ddp_java_throw_named(env, "java/lang/OutOfMemoryError",
                             "libddp: memory outside the Java heap");
    return memory;
}

int ddp_java_handle(JNIEnv* env, jlong handle, const char* name) {
    if (handle != DDP_JAVA_CLOSED && handle != DDP_JAVA_EXPIRED) return 1;
    ddp_java_throw_state(env, name,
                         handle == DDP_JAVA_CLOSED
                             ? "it is closed"
                             : "the step or the buffer hook in which it was lent has ended");
    return 0;
}

int ddp_java_handles(JNIEnv* env, jlongArray handles, const char* name, void** list,
                     size_t* count) {
    if (!ddp_java_copy_longs(env, handles, list, count)) return 0;
    const jlong* each = *list;
    for (size_t i = 0; i < *count; ++i) {
        if (!ddp_java_handle(env, each[i], name)) {
            free(*list);
            return 0;
        }
    }
    return 1;
}

int ddp_java_text(JNIEnv* env, jbyteArray text, char** copy) {
    size_t size;
    void* bytes = NULL;
    const int good = ddp_java_copy_bytes(env, text, &bytes, &size);
    *copy = bytes;
    return good;
}

#define COPY(NAME, ARRAY, ELEMENT, REGION)                                        \
    int NAME(JNIEnv* env, ARRAY numbers, void** copy, size_t* count) {            \
        *copy = NULL;                                                             \
        *count = 0;                                                               \
        if (!numbers) return 1;                                                   \
        const jsize length = (*env)->GetArrayLength(env, numbers);                \
        *copy = allocate(env, (size_t)length, sizeof(ELEMENT));                   \
        if (!*copy) return 0;                                                     \
        *count = (size_t)length;                                                  \
        if (length > 0) (*env)->REGION(env, numbers, 0, length, (ELEMENT*)*copy); \
        return 1;                                                                 \
    }
COPY(ddp_java_copy_bytes, jbyteArray, jbyte, GetByteArrayRegion)
COPY(ddp_java_copy_ints, jintArray, jint, GetIntArrayRegion)
COPY(ddp_java_copy_longs, jlongArray, jlong, GetLongArrayRegion)

int ddp_java_hierarchy(JNIEnv* env, jobjectArray pair, void** periods, void** sizes,
                       size_t* count) {
    size_t size_count = 0;
    jlongArray first = (*env)->GetObjectArrayElement(env, pair, 0);
    jintArray second = (*env)->GetObjectArrayElement(env, pair, 1);
    if (!ddp_java_copy_longs(env, first, periods, count)) return 0;
    if (ddp_java_copy_ints(env, second, sizes, &size_count)) {
        if (!second || size_count == *count) return 1;
        ddp_java_throw_named(env, "java/lang/IllegalArgumentException",
                             "groupSizes: there must be as many group sizes as periods");
    }
    free(*periods);
    free(*sizes);
    return 0;
}

int ddp_java_counts(JNIEnv* env, jobjectArray pair, void** sent, void** received, size_t* count) {
    size_t received_count = 0;
    jlongArray first = (*env)->GetObjectArrayElement(env, pair, 0);
    jlongArray second = (*env)->GetObjectArrayElement(env, pair, 1);
    if (!ddp_java_copy_longs(env, first, sent, count)) return 0;
    if (ddp_java_copy_longs(env, second, received, &received_count)) {
        if (received_count == *count) return 1;
        ddp_java_throw_named(env, "java/lang/IllegalArgumentException",
                             "recvCounts: there must be as many as sendCounts");
    }
    free(*sent);
    free(*received);
    return 0;
}

int ddp_java_texts(JNIEnv* env, jobjectArray texts, char*** list, size_t* count) {
    const jsize length = (*env)->GetArrayLength(env, texts);
    *count = (size_t)length;
    *list = allocate(env, *count, sizeof **list);
    int good = *list != NULL;
    for (jsize i = 0; i < length && good; ++i) {
        jbyteArray text = (*env)->GetObjectArrayElement(env, texts, i);
        good = ddp_java_text(env, text, &(*list)[i]);
        (*env)->DeleteLocalRef(env, text);
    }
    if (!good) ddp_java_texts_free(*list, *count);
    return good;
}

void ddp_java_texts_free(char** list, size_t count) {
    for (size_t i = 0; list && i < count; ++i) free(list[i]);
    free(list);
}

void ddp_java_give(JNIEnv* env, jlongArray result, jlong value) {
    if (!(*env)->ExceptionCheck(env)) (*env)->SetLongArrayRegion(env, result, 0, 1, &value);
}

void ddp_java_give_bytes(JNIEnv* env, jobjectArray result, jsize index, const void* bytes,
                         size_t size) {
    if (!bytes || (*env)->ExceptionCheck(env)) return;
    jbyteArray made = ddp_java_bytes(env, bytes, size);
    if (made) (*env)->SetObjectArrayElement(env, result, index, made);
    (*env)->DeleteLocalRef(env, made);
}

int ddp_java_room(JNIEnv* env, jobjectArray list, size_t size, void** room, size_t* capacity) {
    jarray first = (*env)->GetObjectArrayElement(env, list, 0);
    *capacity = first ? (size_t)(*env)->GetArrayLength(env, first) : 0;
    *room = allocate(env, *capacity, size);
    return *room != NULL;
}

void ddp_java_give_ints(JNIEnv* env, jobjectArray list, const void* numbers, size_t count) {
    jintArray made = (*env)->NewIntArray(env, (jsize)count);
    if (!made) return;
    (*env)->SetIntArrayRegion(env, made, 0, (jsize)count, numbers);
    (*env)->SetObjectArrayElement(env, list, 0, made);
}

void ddp_java_give_longs(JNIEnv* env, jobjectArray list, const void* numbers, size_t count) {
    jlongArray made = (*env)->NewLongArray(env, (jsize)count);
    if (!made) return;
    (*env)->SetLongArrayRegion(env, made, 0, (jsize)count, numbers);
    (*env)->SetObjectArrayElement(env, list, 0, made);
}
