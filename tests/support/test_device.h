// A GPU for the tests of Java and Julia. The tests' own devices have it
// (fake_device/test_device.cc), and so has the CUDA runtime (gpu/test_device.cc): the same tests
// run on both. A failure ends the process.
#pragma once

#include <cstddef>

extern "C" {

// 1: the tests' own devices, of which there are two.
int test_device_is_fake();
void* test_device_allocate(int device, std::size_t bytes);
// They wait for no stream, and are over when they return.
void test_device_write(void* memory, const void* from, std::size_t bytes);
void test_device_read(void* to, const void* memory, std::size_t bytes);
void* test_device_make_stream(int device);
void test_device_free_stream(void* stream);
// Until the stream has nothing to do.
void test_device_wait(int device, void* stream);
}
