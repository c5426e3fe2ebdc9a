package org.libddp;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.libddp.Support.bytes;
import static org.libddp.Support.raises;

import java.lang.ref.WeakReference;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Direct buffers are used where they lie, and what cannot be used is refused with a sentence that
 * names the argument. */
class BuffersTest {
    private final Group group = Support.alone();

    private static void refused(String words, Buffer buffer, Dtype dtype) {
        raises(IllegalArgumentException.class, words, () -> Memory.of("recv", buffer, dtype));
    }

    @Test
    void everyKind() {
        assertEquals(Dtype.F32, Memory.of(bytes(8).asFloatBuffer()).dtype());
        assertEquals(Dtype.F64, Memory.of(bytes(8).asDoubleBuffer()).dtype());
        assertEquals(Dtype.I32, Memory.of(bytes(8).asIntBuffer()).dtype());
        assertEquals(Dtype.I64, Memory.of(bytes(8).asLongBuffer()).dtype());
        assertEquals(Dtype.U8, Memory.of(bytes(8)).dtype());
        assertEquals(Dtype.BF16, Memory.of(bytes(8).asShortBuffer(), Dtype.BF16).dtype());
        assertEquals(4, Memory.of(bytes(8).asShortBuffer(), Dtype.F16).count());
        assertEquals(2, Memory.of(bytes(16).asFloatBuffer(), Dtype.C64).count());
        assertEquals(1, Memory.of(bytes(16).asDoubleBuffer(), Dtype.C128).count());
        assertEquals(2, Memory.of(bytes(8), Dtype.F32).count());
        assertEquals(0, Memory.of(ByteBuffer.allocateDirect(0)).count());
    }

    /** The result of collectives in a buffer of each kind, seen through the buffer. */
    @Test
    void reducedWhereTheyLie() {
        FloatBuffer f = Support.floats(1.5f, 2);
        group.allreduce(f, Op.SUM);
        assertArrayEquals(new float[] {1.5f, 2}, Support.array(f));
        DoubleBuffer d = bytes(8).asDoubleBuffer().put(0, 3);
        DoubleBuffer to = bytes(8).asDoubleBuffer();
        group.allreduce(Memory.of(d), Memory.of(to), Op.MAX);
        assertEquals(3, to.get(0));
        IntBuffer i = bytes(4).asIntBuffer().put(0, -7);
        IntBuffer gathered = bytes(4).asIntBuffer();
        group.allgather(i, gathered);
        assertEquals(-7, gathered.get(0));
        LongBuffer l = bytes(8).asLongBuffer().put(0, 1L << 40);
        LongBuffer part = bytes(8).asLongBuffer();
        group.reduceScatter(l, part, Op.SUM);
        assertEquals(1L << 40, part.get(0));
        ShortBuffer s = bytes(2).asShortBuffer().put(0, (short) 0x3f80); // 1 as bfloat16
        group.allreduceAsync(Memory.of(s, Dtype.BF16), Op.SUM).await();
        assertEquals(0x3f80, s.get(0));
        ByteBuffer b = bytes(3).put(0, (byte) 200);
        group.broadcast(b, 0);
        assertEquals((byte) 200, b.get(0));
    }

    @Test
    void slicesAndPositions() {
        FloatBuffer whole = Support.floats(1, 2, 3, 4, 5, 6);
        long start = Memory.of(whole).address;
        assertEquals(start + 8, Memory.of(whole.slice(2, 3)).address);
        FloatBuffer part = whole.duplicate().position(1).limit(4);
        Memory memory = Memory.of(part);
        assertEquals(start + 4, memory.address);
        assertEquals(3, memory.count());
        part.position(3); // the caller's own affair from then on
        assertArrayEquals(new float[] {2, 3, 4}, Support.array(memory.floats()));
        group.allreduce(whole.slice(2, 2), Op.SUM);
        assertArrayEquals(new float[] {1, 2, 3, 4, 5, 6}, Support.array(whole));
        ByteBuffer raw = bytes(16);
        refused("aligned", raw.position(1).limit(9).slice().order(ByteOrder.nativeOrder()),
                Dtype.F32);
        refused("aligned",
                raw.clear()
                        .position(1)
                        .limit(9)
                        .slice()
                        .order(ByteOrder.nativeOrder())
                        .asFloatBuffer(),
                null);
    }

    @Test
    void refusedBuffers() {
        refused("recv: the buffer is on the Java heap", FloatBuffer.allocate(3), null);
        refused("recv: the buffer is on the Java heap", ByteBuffer.allocate(3), null);
        ByteOrder other = ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN ? ByteOrder.LITTLE_ENDIAN
                                                                          : ByteOrder.BIG_ENDIAN;
        ByteBuffer swapped = ByteBuffer.allocateDirect(16).order(other);
        refused("recv: its byte order is " + other, swapped.asFloatBuffer(), null);
        refused("recv: its byte order is " + other, swapped.asLongBuffer(), null);
        refused("recv: its byte order is " + other, swapped, Dtype.F32);
        Memory.of(swapped); // single bytes have none
        refused("characters", bytes(4).asCharBuffer(), null);
        refused("F16 or BF16", bytes(4).asShortBuffer(), null);
        refused("its type is F32, but F64 is expected", bytes(8).asFloatBuffer(), Dtype.F64);
        refused("cannot be divided", bytes(6), Dtype.F32);
        raises(NullPointerException.class, "recv", () -> group.allreduce((Buffer) null, Op.SUM));
        FloatBuffer frozen = Support.floats(1, 2).asReadOnlyBuffer();
        raises(IllegalArgumentException.class, "recv: the buffer is read-only",
                () -> group.allreduce(frozen, Op.SUM));
        group.allreduce(Memory.of(frozen), Memory.of(Support.floats(0, 0)), Op.SUM); // only read
    }

    @Test
    void sizesAndTypesOfCollectives() {
        raises(IllegalArgumentException.class, "send: it has 3 elements, but 2",
                () -> group.allgather(Support.floats(1, 2, 3), Support.floats(1, 2)));
        raises(IllegalArgumentException.class, "send: its type is F64, but F32",
                () -> group.reduceScatter(bytes(8).asDoubleBuffer(), Support.floats(1), Op.SUM));
    }

    @Test
    void parametersThatDoNotFit() {
        try (Context context = new Context(group)) {
            FloatBuffer three = Support.floats(1, 2, 3);
            raises(IllegalArgumentException.class, "a: grad: it has 4 elements",
                    () -> context.register("a", three, Support.floats(1, 2, 3, 4)));
            raises(IllegalArgumentException.class, "a: grad: its type is F64",
                    () -> context.register("a", three, bytes(24).asDoubleBuffer()));
            raises(IllegalArgumentException.class,
                    "a: data: it has 3 elements, but 4 are expected (shape [2, 2])",
                    () -> context.register("a", three, 2, 2));
            raises(IllegalArgumentException.class, "data: the buffer is read-only",
                    () -> context.register("a", three.asReadOnlyBuffer()));
            raises(IllegalArgumentException.class, "data: the buffer is on the Java heap",
                    () -> context.register("a", FloatBuffer.allocate(3)));
            raises(IllegalArgumentException.class, "a: say what it is",
                    () -> context.parameter("a").register());
            Parameter good = context.register("a", three);
            Parameter sparse = context.parameter("s").shape(5, 2).sparse().register();
            Parameter factored = context.parameter("f").shape(4, 3).factored().register();
            context.commit();
            raises(IllegalArgumentException.class, "a: grad: it has 2 elements, but 3",
                    () -> context.put(good, Support.floats(1, 2)));
            raises(IllegalArgumentException.class, "s: indices: its type is I32",
                    ()
                            -> context.gradReadySparse(
                                    sparse, bytes(4).asIntBuffer(), Support.floats(1, 2)));
            raises(IllegalArgumentException.class, "s: values: it has 3 elements, but 2",
                    ()
                            -> context.gradReadySparse(
                                    sparse, bytes(8).asLongBuffer(), Support.floats(1, 2, 3)));
            raises(IllegalArgumentException.class, "f: right: it has 4 elements, but 3",
                    ()
                            -> context.gradReadyFactors(factored, Support.floats(1, 2, 3, 4),
                                    Support.floats(1, 2, 3, 4)));
        }
    }

    /** A view into a context that is closed and forgotten. */
    private FloatBuffer viewOfAContextThatIsGone(List<WeakReference<Context>> gone) {
        try (Context context = new Context(group)) {
            Parameter parameter = context.parameter("w").shape(1000).register();
            context.commit();
            gone.add(new WeakReference<>(context));
            return parameter.view().floats().slice(10, 20);
        }
    }

    @Test
    void memoryOfTheLibraryOutlivesIt() throws Exception {
        FloatBuffer kept = group.alloc(Dtype.F32, 10, 100).floats();
        List<WeakReference<Context>> gone = new ArrayList<>();
        FloatBuffer view = viewOfAContextThatIsGone(gone);
        group.close();
        Support.collectUntil(() -> gone.get(0).get() == null);
        for (int i = 0; i < 1000; ++i) kept.put(i, i);
        for (int i = 0; i < 20; ++i) view.put(i, i);
        assertEquals(999, kept.get(999));
        assertEquals(19, view.get(19));
    }

    @Test
    void memoryKnowsItsType() {
        Memory memory = group.alloc(Dtype.F16, 3, 4);
        assertArrayEquals(new long[] {3, 4}, memory.shape());
        assertEquals(12, memory.shorts().capacity());
        assertEquals(24, memory.bytes().capacity());
        raises(IllegalStateException.class, "floats(): the elements are F16", memory::floats);
        assertEquals(6, group.alloc(Dtype.C128, 3).doubles().capacity());
        raises(DdpException.Unsupported.class, "2 GiB",
                () -> Memory.at(8, Dtype.F32, new long[] {1L << 30}, null, Device.CPU));
    }
}
