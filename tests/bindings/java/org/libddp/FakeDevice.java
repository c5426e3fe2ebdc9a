package org.libddp;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;

/** The tests' own devices, whose memory no processor can touch and whose streams are late: tests/support/fake_device. */
final class FakeDevice {
    static {
        System.load(System.getProperty("org.libddp.test.device"));
    }

    private FakeDevice() {}

    static native long allocate(int device, long bytes);

    static native void release(long memory);

    /** A second mapping of its memory. */
    static native ByteBuffer show(long memory, long bytes);

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

    /** Its elements, as the device sees them. */
    static FloatBuffer floats(Memory memory) {
        return show(memory.address(), 4 * memory.count()).order(ByteOrder.nativeOrder()).asFloatBuffer();
    }

    static void fill(Memory memory, float value) {
        FloatBuffer floats = floats(memory);
        for (int i = 0; i < floats.capacity(); ++i) floats.put(i, value);
    }
}
