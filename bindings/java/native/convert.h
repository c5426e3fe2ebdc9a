/* convert.h: text, bytes and lists between Java and C. Functions that return int give 1, or 0 with
 * a Java exception; what they make is freed by the caller, with free() unless another function is
 * named. */
#ifndef DDP_JAVA_CONVERT_H
#define DDP_JAVA_CONVERT_H

#include <jni.h>
#include <stddef.h>
#include <stdint.h>

/* Values of Handle.enter instead of an address. Throws IllegalStateException, which names the
 * argument. */
enum { DDP_JAVA_CLOSED = -1, DDP_JAVA_EXPIRED = -2 };
int ddp_java_handle(JNIEnv* env, jlong handle, const char* name);
int ddp_java_handles(JNIEnv* env, jlongArray handles, const char* name, void** list, size_t* count);

/* UTF-8 that ends with a NUL; null gives NULL. */
int ddp_java_text(JNIEnv* env, jbyteArray text, char** copy);
/* null gives NULL and 0. */
int ddp_java_copy_bytes(JNIEnv* env, jbyteArray bytes, void** copy, size_t* size);
int ddp_java_copy_ints(JNIEnv* env, jintArray numbers, void** copy, size_t* count);
int ddp_java_copy_longs(JNIEnv* env, jlongArray numbers, void** copy, size_t* count);
/* {long[] periods, int[] sizes or null}, as long as each other. */
int ddp_java_hierarchy(JNIEnv* env, jobjectArray pair, void** periods, void** sizes, size_t* count);

/* {sendCounts, recvCounts}, as long as each other. */
int ddp_java_counts(JNIEnv* env, jobjectArray pair, void** sent, void** received, size_t* count);

int ddp_java_texts(JNIEnv* env, jobjectArray texts, char*** list, size_t* count);
void ddp_java_texts_free(char** list, size_t count);

/* RESULTS. Nothing where an exception is under way. */

/* result[0] = value */
void ddp_java_give(JNIEnv* env, jlongArray result, jlong value);
/* result[index] = a copy of the bytes; NULL changes nothing. */
void ddp_java_give_bytes(JNIEnv* env, jobjectArray result, jsize index, const void* bytes,
                         size_t size);
/* Room for as many elements of this size as the array list[0] has. */
int ddp_java_room(JNIEnv* env, jobjectArray list, size_t size, void** room, size_t* capacity);
/* list[0] = these numbers */
void ddp_java_give_ints(JNIEnv* env, jobjectArray list, const void* numbers, size_t count);
void ddp_java_give_longs(JNIEnv* env, jobjectArray list, const void* numbers, size_t count);

#endif /* DDP_JAVA_CONVERT_H */
