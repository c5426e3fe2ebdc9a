package org.libddp;

import java.util.Arrays;

/**
 * The tests' own devices, whose memory no processor can touch and whose streams are late, or a GPU:
 * tests/support/test_device.h. The property org.libddp.test.device names the library.
 */
final class TestDevice {
    static {
        System.load(System.getProperty("org.libddp.test.device"));
    }

    private TestDevice() {}

    /** The tests' own devices, of which there are two. */
    static native boolean isFake();

    static native long allocate(int device, long bytes);

    static native void write(long memory, float[] values);

    static native void read(float[] values, long memory);

    static native long makeStream(int device);

    static native void freeStream(long stream);

    /** Until the stream has nothing to do. */
    static native void await(int device, long stream);

    /** As many floats on device 0, all with this value. */
    static Memory full(int count, float value) {
        Memory memory = Memory.onDevice(Device.cuda(0), allocate(0, 4L * count), Dtype.F32, count);
        fill(memory, value);
        return memory;
    }

    /** A copy of its elements. */
    static float[] floats(Memory memory) {
        float[] values = new float[(int) memory.count()];
        read(values, memory.address());
        return values;
    }

    static void fill(Memory memory, float value) {
        float[] values = new float[(int) memory.count()];
        Arrays.fill(values, value);
        write(memory.address(), values);
    }
}
