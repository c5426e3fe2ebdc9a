// A GPU, or the tests' own devices, as org.libddp.TestDevice sees them.
#include "support/test_device.h"

#include <jni.h>

#include <vector>

namespace {

void* pointer(jlong address) {
    return reinterpret_cast<void*>(address);  // NOLINT: that is how Java holds it
}
jlong number(void* memory) {
    return reinterpret_cast<jlong>(memory);
}

}  // namespace

extern "C" {

JNIEXPORT jboolean JNICALL Java_org_libddp_TestDevice_isFake(JNIEnv*, jclass) {
    return test_device_is_fake() != 0 ? JNI_TRUE : JNI_FALSE;
}
JNIEXPORT jlong JNICALL Java_org_libddp_TestDevice_allocate(JNIEnv*, jclass, jint device,
                                                            jlong bytes) {
    return number(test_device_allocate(device, static_cast<std::size_t>(bytes)));
}
JNIEXPORT void JNICALL Java_org_libddp_TestDevice_write(JNIEnv* env, jclass, jlong memory,
                                                        jfloatArray values) {
    std::vector<float> copy(static_cast<std::size_t>(env->GetArrayLength(values)));
    env->GetFloatArrayRegion(values, 0, static_cast<jsize>(copy.size()), copy.data());
    test_device_write(pointer(memory), copy.data(), copy.size() * sizeof(float));
}
JNIEXPORT void JNICALL Java_org_libddp_TestDevice_read(JNIEnv* env, jclass, jfloatArray values,
                                                       jlong memory) {
    std::vector<float> copy(static_cast<std::size_t>(env->GetArrayLength(values)));
    test_device_read(copy.data(), pointer(memory), copy.size() * sizeof(float));
    env->SetFloatArrayRegion(values, 0, static_cast<jsize>(copy.size()), copy.data());
}
JNIEXPORT jlong JNICALL Java_org_libddp_TestDevice_makeStream(JNIEnv*, jclass, jint device) {
    return number(test_device_make_stream(device));
}
JNIEXPORT void JNICALL Java_org_libddp_TestDevice_freeStream(JNIEnv*, jclass, jlong stream) {
    test_device_free_stream(pointer(stream));
}
JNIEXPORT void JNICALL Java_org_libddp_TestDevice_await(JNIEnv*, jclass, jint device,
                                                        jlong stream) {
    test_device_wait(device, pointer(stream));
}
}
