package org.libddp;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.Arrays;

/**
 * An array that libddp and Java both see: elements of a {@link Dtype}, with a shape.
 *
 * <p>{@link #of} takes a direct buffer, from its position to its limit. {@link #floats} and similar
 * methods show libddp's memory, or the same buffer, without a copy. You may keep such a buffer as
 * long as you like. Memory of a GPU ({@link #onDevice}, and libddp's own there) is only an address;
 * no buffer shows it.
 */
public final class Memory {
    private static final ByteOrder NATIVE = ByteOrder.nativeOrder();

    final long address;
    private final Dtype dtype;
    private final long count;
    private final long[] shape;
    private final boolean readOnly;
    private final Device device;
    /** Keeps the memory alive: the buffer over it; on a device the layout that it belongs to, or
     * null for a program's own. */
    private final Object root;

    private Memory(Object root, long address, Dtype dtype, long count, long[] shape,
            boolean readOnly, Device device) {
        this.root = root;
        this.address = address;
        this.dtype = dtype;
        this.count = count;
        this.shape = shape;
        this.readOnly = readOnly;
        this.device = device;
    }

    /**
     * A direct buffer's elements, of the type that its class says: F32, F64, I32, I64, or U8 for
     * bytes.
     *
     * @param buffer direct, in this machine's byte order; its elements from position to limit
     * @return the same memory, which keeps the buffer alive
     */
    public static Memory of(Buffer buffer) {
        return of("buffer", buffer, null);
    }

    /**
     * A direct buffer's bytes as elements of a type: shorts as F16 or BF16, floats as C64, bytes as
     * anything.
     *
     * @param buffer direct, in this machine's byte order; its elements from position to limit
     * @param dtype the type of the elements
     * @return the same memory, which keeps the buffer alive
     */
    public static Memory of(Buffer buffer, Dtype dtype) {
        return of("buffer", buffer, dtype);
    }

    /**
     * The program's own array in a device's memory. It must stay until its context is closed or its
     * operation has ended.
     *
     * @param device a GPU
     * @param address the address of the first element on the device
     * @param dtype the type of the elements
     * @param shape the extents, the last of which is contiguous
     * @return the same memory, which the program still owns
     */
    public static Memory onDevice(Device device, long address, Dtype dtype, long... shape) {
        if (device.isCpu())
            throw wrong("device", "memory of the CPU is given as a direct buffer: Memory.of");
        for (long extent : shape) {
            if (extent < 0)
                throw wrong("shape",
                        "it is " + Arrays.toString(shape) + ", and no extent may be negative");
        }
        long count = count(shape);
        if (address == 0 && count > 0) throw wrong("address", "it is 0, which is no memory");
        return new Memory(null, address, dtype, count, shape.clone(), false, device);
    }

    /** Errors name {@code what}. dtype: null takes that of the buffer's class. */
    static Memory of(String what, Buffer buffer, Dtype dtype) {
        if (buffer == null) throw new NullPointerException(what + ": null is no buffer");
        if (!buffer.isDirect()) {
            throw wrong(what,
                    "the buffer is on the Java heap: pass a direct one (ByteBuffer.allocateDirect), whose memory libddp "
                            + "can use where it lies");
        }
        int size = elementSize(what, buffer);
        if (size > 1 || dtype != null && dtype.size() > 1) checkOrder(what, buffer);
        Dtype type = typeOf(what, buffer, dtype);
        long bytes = (long) buffer.remaining() * size;
        Buffer root = buffer.slice(); // whatever happens to the caller's position
        long address = ddp.ddp_java_address(root);
        if (bytes % type.size() != 0) {
            throw wrong(what,
                    "its " + bytes + " bytes cannot be divided into elements of " + type + " of "
                            + type.size() + " bytes");
        }
        if (bytes > 0 && address % Math.min(type.size(), 8) != 0) {
            throw wrong(what, "its first byte is not aligned to an element of " + type);
        }
        long count = bytes / type.size();
        return new Memory(
                root, address, type, count, new long[] {count}, buffer.isReadOnly(), Device.CPU);
    }

    /** Memory of libddp's, as long as {@code owner} is kept; null: of a handle that frees it by
     * itself. */
    static Memory at(long address, Dtype dtype, long[] shape, Handle<?> owner, Device device) {
        long count = count(shape);
        if (!device.isCpu())
            return new Memory(owner, address, dtype, count, shape.clone(), false, device);
        ByteBuffer root = show(address, count * dtype.size());
        if (owner != null) owner.keepWith(root);
        return new Memory(root, address, dtype, count, shape.clone(), false, device);
    }

    /** Memory of ddp_mem_alloc, freed with the last buffer over it. */
    static Memory allocated(long address, Dtype dtype, long[] shape) {
        Memory memory = at(address, dtype, shape, null, Device.CPU);
        Handle.freeWith(memory.root, address);
        return memory;
    }

    /** A copy of memory of libddp's. */
    static Memory copied(long address, Dtype dtype, long[] shape) {
        int bytes = Math.toIntExact(count(shape) * dtype.size());
        ByteBuffer copy = ByteBuffer.allocateDirect(bytes).order(NATIVE);
        if (bytes > 0) ddp.ddp_java_copy(ddp.ddp_java_address(copy), address, bytes);
        Memory made = of("copy", copy, dtype);
        return new Memory(copy, made.address, dtype, made.count, shape.clone(), false, Device.CPU);
    }

    /** That a buffer can be over so many bytes. */
    static void requireBuffer(long bytes) {
        if (bytes > Integer.MAX_VALUE) {
            throw DdpException.unsupported(
                    "an array of " + bytes + " bytes is larger than a Java buffer can be (2 GiB)");
        }
    }

    private static ByteBuffer show(long address, long bytes) {
        requireBuffer(bytes);
        return bytes == 0 ? ByteBuffer.allocateDirect(0) : ddp.ddp_java_show(address, bytes);
    }

    // CHECKS

    private static IllegalArgumentException wrong(String what, String why) {
        return new IllegalArgumentException(what + ": " + why);
    }

    private static int elementSize(String what, Buffer buffer) {
        if (buffer instanceof ByteBuffer) return 1;
        if (buffer instanceof ShortBuffer) return 2;
        if (buffer instanceof FloatBuffer || buffer instanceof IntBuffer) return 4;
        if (buffer instanceof DoubleBuffer || buffer instanceof LongBuffer) return 8;
        throw wrong(what, "buffers of characters are not supported");
    }

    private static ByteOrder orderOf(Buffer buffer) {
        if (buffer instanceof ByteBuffer) return ((ByteBuffer) buffer).order();
        if (buffer instanceof ShortBuffer) return ((ShortBuffer) buffer).order();
        if (buffer instanceof FloatBuffer) return ((FloatBuffer) buffer).order();
        if (buffer instanceof IntBuffer) return ((IntBuffer) buffer).order();
        if (buffer instanceof DoubleBuffer) return ((DoubleBuffer) buffer).order();
        return ((LongBuffer) buffer).order();
    }

    private static void checkOrder(String what, Buffer buffer) {
        if (orderOf(buffer) == NATIVE) return;
        throw wrong(what,
                "its byte order is " + orderOf(buffer) + ", this machine's is " + NATIVE
                        + ": call order(ByteOrder.nativeOrder()) on the ByteBuffer first");
    }

    private static Dtype typeOf(String what, Buffer buffer, Dtype dtype) {
        if (buffer instanceof ByteBuffer) return dtype == null ? Dtype.U8 : dtype;
        if (buffer instanceof ShortBuffer && (dtype == Dtype.F16 || dtype == Dtype.BF16))
            return dtype;
        if (buffer instanceof ShortBuffer) {
            throw wrong(what,
                    "shorts hold F16 or BF16, and it must be said which: Memory.of(buffer, Dtype.BF16)");
        }
        boolean real = buffer instanceof FloatBuffer || buffer instanceof DoubleBuffer;
        boolean wide = buffer instanceof DoubleBuffer || buffer instanceof LongBuffer;
        Dtype own = real ? (wide ? Dtype.F64 : Dtype.F32) : (wide ? Dtype.I64 : Dtype.I32);
        boolean complex = real && dtype == (wide ? Dtype.C128 : Dtype.C64);
        if (dtype == null || dtype == own) return own;
        if (complex) return dtype;
        throw wrong(what, "its type is " + own + ", but " + dtype + " is expected");
    }

    static long count(long[] shape) {
        long count = 1;
        for (long extent : shape) count = Math.multiplyExact(count, extent);
        return count;
    }

    Memory writable(String what) {
        if (readOnly) throw wrong(what, "the buffer is read-only, and libddp writes into it");
        return this;
    }

    /** The same memory, if it has as many elements. */
    Memory shaped(String what, long[] extents) {
        if (count(extents) == count)
            return new Memory(root, address, dtype, count, extents.clone(), readOnly, device);
        throw wrong(what,
                "it has " + count + " elements, but " + count(extents) + " are expected (shape "
                        + Arrays.toString(extents) + ")");
    }

    /** Part i of as many as the first extent says. */
    Memory slice(int i) {
        long[] extents = Arrays.copyOfRange(shape, 1, shape.length);
        long items = count(extents);
        Object part = root;
        if (device.isCpu() && items > 0) {
            Buffer buffer = ((Buffer) root).duplicate();
            long step = buffer.remaining() / shape[0];
            int begin = buffer.position() + (int) (i * step);
            buffer.limit(begin + (int) step).position(begin);
            part = buffer;
        }
        return new Memory(
                part, address + i * items * dtype.size(), dtype, items, extents, readOnly, device);
    }

    /** So many elements, after `first` others. */
    Memory range(long first, long items) {
        Object part = root;
        if (device.isCpu()) {
            Buffer buffer = ((Buffer) root).duplicate();
            int step = (int) (buffer.remaining() / count);
            int begin = buffer.position() + (int) (first * step);
            buffer.limit(begin + (int) (items * step)).position(begin);
            part = buffer;
        }
        return new Memory(part, address + first * dtype.size(), dtype, items, new long[] {items},
                readOnly, device);
    }

    Memory typed(String what, Dtype expected) {
        if (dtype == expected) return this;
        throw wrong(what, "its type is " + dtype + ", but " + expected + " is expected");
    }

    Memory counted(String what, long expected) {
        if (count == expected) return this;
        throw wrong(what, "it has " + count + " elements, but " + expected + " are expected");
    }

    // WHAT IT IS

    /** {@return the device that it lies on} */
    public Device device() {
        return device;
    }

    /** {@return its address on the device, for a library that works there; it stays as long as this
     * object} */
    public long address() {
        return address;
    }

    /** {@return the type of its elements} */
    public Dtype dtype() {
        return dtype;
    }

    /** {@return the number of elements} */
    public long count() {
        return count;
    }

    /** {@return a copy of the extents, the last of which is contiguous} */
    public long[] shape() {
        return shape.clone();
    }

    /** {@return its bytes, in this machine's order} */
    public ByteBuffer bytes() {
        if (root instanceof ByteBuffer) return ((ByteBuffer) root).slice().order(NATIVE);
        if (!device.isCpu()) {
            throw new IllegalStateException("the memory is on " + device
                    + ", where no buffer reaches it; give its address() to a library that does");
        }
        throw new IllegalStateException(
                "the memory is that of a " + root.getClass().getSimpleName() + ", not of bytes");
    }

    /** {@return its elements: of F32, or the parts of C64} */
    public FloatBuffer floats() {
        check("floats", Dtype.F32, Dtype.C64);
        return root instanceof FloatBuffer ? ((FloatBuffer) root).slice() : bytes().asFloatBuffer();
    }

    /** {@return its elements: of F64, or the parts of C128} */
    public DoubleBuffer doubles() {
        check("doubles", Dtype.F64, Dtype.C128);
        return root instanceof DoubleBuffer ? ((DoubleBuffer) root).slice()
                                            : bytes().asDoubleBuffer();
    }

    /** {@return its elements: of I32} */
    public IntBuffer ints() {
        check("ints", Dtype.I32, Dtype.I32);
        return root instanceof IntBuffer ? ((IntBuffer) root).slice() : bytes().asIntBuffer();
    }

    /** {@return its elements: of I64} */
    public LongBuffer longs() {
        check("longs", Dtype.I64, Dtype.I64);
        return root instanceof LongBuffer ? ((LongBuffer) root).slice() : bytes().asLongBuffer();
    }

    /** {@return the bits of its elements: of F16 or BF16} */
    public ShortBuffer shorts() {
        check("shorts", Dtype.F16, Dtype.BF16);
        return root instanceof ShortBuffer ? ((ShortBuffer) root).slice() : bytes().asShortBuffer();
    }

    private void check(String what, Dtype first, Dtype second) {
        if (dtype == first || dtype == second) return;
        throw new IllegalStateException(what + "(): the elements are " + dtype);
    }

    @Override
    public String toString() {
        return "Memory of " + dtype + Arrays.toString(shape)
                + (device.isCpu() ? "" : " on " + device);
    }
}
