package org.libddp;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.ref.WeakReference;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;

/** Every object that is made is freed, and the garbage collector may run at any moment. */
class LifetimeTest {
    private final Group group = Support.alone();

    private static void step(Context ctx, FloatBuffer gradient) {
        ctx.stepBegin();
        for (Parameter each : ctx.parameters()) each.put(gradient);
        ctx.finalizeStep();
    }

    private void contexts(int count) {
        FloatBuffer gradient = Support.full(100, 1);
        for (int i = 0; i < count; ++i) {
            try (Context ctx = new Context(group)) {
                ctx.register("w", gradient);
                ctx.parameter("a name that is long enough for memory of its own")
                        .shape(100)
                        .register();
                ctx.commit();
                if (i % 4 == 0) {
                    ctx.setHook((g, bucket) -> g.allreduceAsync(bucket.buffer(), bucket.op()));
                    step(ctx, gradient);
                }
            }
        }
    }

    /** Memory of the process after collecting what is to be collected, by a cleaner's thread that
     * may be late: until it falls no more. */
    private static long settled() throws Exception {
        long now = Long.MAX_VALUE;
        for (int look = 0, still = 0; look < 100 && still < 5; ++look) {
            System.gc();
            Thread.sleep(20);
            long before = now;
            now = Support.residentKib();
            still = now < before - 256 ? 0 : still + 1;
        }
        return now;
    }

    /** A leak grows in every round; the JVM's own memory (its heap, what it compiles) does not. */
    private static void assertFlat(long kib, String what, Runnable work) throws Exception {
        work.run();
        long grown = kib;
        for (int round = 0; round < 3 && grown >= kib; ++round) {
            long before = settled();
            work.run();
            grown = settled() - before;
        }
        assertTrue(grown < kib, grown + " KiB for " + what);
    }

    @Test
    void anAveragerWithoutItsContext() {
        Context ctx = new Context(group);
        ctx.parameter("w").data(Support.full(100, 0)).register();
        ctx.commit();
        Averager averager = new Averager(ctx, 1);
        assertEquals(1, averager.step());
        ctx.close();
        Support.raises(IllegalStateException.class, "the context of this averager is closed",
                averager::step);
    }

    /** A context that is not freed costs some 20 KiB: 200 MB in all. */
    @Test
    void tenThousandContexts() throws Exception {
        assertFlat(8 * 1024, "10,000 contexts", () -> contexts(10000));
    }

    @Test
    void contextsThatAreForgottenAreFreed() throws Exception {
        assertFlat(8 * 1024, "2,000 forgotten contexts", () -> {
            for (int i = 0; i < 2000; ++i) {
                Context ctx = new Context(group);
                ctx.parameter("w").shape(1000).register();
                ctx.commit();
            }
        });
    }

    @Test
    void stepsThatAreLeftOutLetGoOfTheirArrays() throws Exception {
        final int size = 1 << 18; // a MiB
        FloatBuffer bad = Support.full(size, Float.NaN);
        try (Context ctx = new Context(group, new ContextOptions().skipNonfinite(true))) {
            ctx.parameter("w").shape(size).register();
            ctx.commit();
            ctx.setHook((g, bucket)
                                -> g.allreduceAsync(
                                        Support.bytes(4 * size).asFloatBuffer(), bucket.op()));
            assertFlat(32 * 1024, "200 steps with NaN", () -> {
                for (int i = 0; i < 200; ++i)
                    Support.raises(DdpException.Nonfinite.class, "w", () -> step(ctx, bad));
            });
        }
    }

    private void errorsAndWorks(int count) {
        FloatBuffer array = Support.full(100, 0);
        try (Store store = group.store()) {
            for (int i = 0; i < count; ++i) {
                try (Context ctx = new Context(group)) {
                    Support.raises(DdpException.InvalidState.class, "", ctx::commit);
                }
                group.allreduceAsync(array, Op.SUM).then(() -> {}).await();
                group.allreduceAsync(Support.full(100, 1), Op.SUM); // forgotten, with its array
                store.set("key", new byte[500]);
                store.get("key");
            }
        }
    }

    @Test
    void errorsAndWorksAreFreed() throws Exception {
        assertFlat(4 * 1024, "4,000 errors and works", () -> errorsAndWorks(4000));
    }

    @Test
    void aForgottenContextLetsGoOfItsBuffers() throws Exception {
        FloatBuffer array = Support.full(100, 0);
        WeakReference<FloatBuffer> held = new WeakReference<>(array);
        Context ctx = new Context(group);
        ctx.register("w", array);
        ctx.commit();
        WeakReference<Context> gone = new WeakReference<>(ctx);
        ctx.setHook((g, bucket) -> {
            assertTrue(gone.get() != null);
            return null;
        });
        array = null;
        System.gc();
        step(ctx, Support.full(100, 1));
        ctx = null;
        Support.collectUntil(() -> gone.get() == null && held.get() == null);
    }

    @Test
    void aHookThatKnowsItsContextIsCollected() throws Exception {
        WeakReference<Context> gone = hooked();
        Support.collectUntil(() -> gone.get() == null);
    }

    private WeakReference<Context> hooked() {
        Context ctx = new Context(group);
        ctx.parameter("w").shape(3).register();
        ctx.commit();
        ctx.setHook((g, bucket) -> {
            ctx.stats();
            return null;
        });
        ctx.hookThen((g, bucket) -> ctx.stats());
        ctx.setReducedFunction((parameter, used) -> ctx.stats());
        step(ctx, Support.full(3, 1));
        return new WeakReference<>(ctx);
    }

    /** A context keeps its group, also where the program does not name it any more. */
    @Test
    void aContextKeepsItsGroup() throws Exception {
        Context ctx = new Context(Support.alone());
        ctx.parameter("w").shape(3).register();
        ctx.commit();
        for (int i = 0; i < 5; ++i) {
            System.gc();
            step(ctx, Support.full(3, 1));
        }
        ctx.close();
    }

    private float[] train() {
        try (Context ctx = new Context(group, new ContextOptions().bucketCap(2000))) {
            List<FloatBuffer> weights = new ArrayList<>();
            for (int i = 0; i < 8; ++i) {
                weights.add(Support.full(500, 1));
                ctx.register("w" + i, weights.get(i));
            }
            ctx.commit();
            ctx.setHook((g, bucket) -> {
                FloatBuffer flat = bucket.buffer().floats();
                FloatBuffer copy = Support.bytes(4 * flat.capacity())
                                           .asFloatBuffer()
                                           .put(flat.duplicate())
                                           .flip();
                return g.allreduceAsync(copy, bucket.op()).then(() -> {
                    flat.duplicate().put(copy);
                });
            });
            for (int step = 0; step < 30; ++step) {
                ctx.stepBegin();
                for (int i = 0; i < 8; ++i) {
                    FloatBuffer gradient = Support.full(500, 0);
                    for (int j = 0; j < 500; ++j) gradient.put(j, 0.5f * weights.get(i).get(j));
                    ctx.parameters().get(i).put(gradient);
                }
                ctx.finalizeStep();
                for (int i = 0; i < 8; ++i) {
                    FloatBuffer mean = ctx.parameters().get(i).view().floats();
                    for (int j = 0; j < 500; ++j)
                        weights.get(i).put(j, weights.get(i).get(j) - 0.1f * mean.get(j));
                }
            }
            float[] all = new float[4000];
            for (int i = 0; i < 8; ++i) weights.get(i).duplicate().get(all, 500 * i, 500);
            return all;
        }
    }

    @Test
    void collectingDuringTrainingChangesNothing() throws Exception {
        float[] expected = train();
        AtomicBoolean stop = new AtomicBoolean();
        Thread collector = new Thread(() -> {
            while (!stop.get()) System.gc();
        });
        collector.start();
        float[] found = train();
        stop.set(true);
        collector.join();
        assertArrayEquals(expected, found);
    }
}
