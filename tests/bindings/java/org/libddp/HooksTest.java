package org.libddp;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.libddp.Ranks.SIZE;
import static org.libddp.Ranks.group;
import static org.libddp.Ranks.make;
import static org.libddp.Ranks.mean;
import static org.libddp.Ranks.mine;
import static org.libddp.Ranks.rank;
import static org.libddp.Ranks.scaled;
import static org.libddp.Ranks.sum;
import static org.libddp.Ranks.train;
import static org.libddp.Ranks.world;
import static org.libddp.Support.full;
import static org.libddp.Support.raises;

import java.io.IOException;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;

/** Functions of the program's that libddp calls, on several ranks. */
@TestMethodOrder(MethodOrderer.MethodName.class)
class HooksTest {
    @Test
    void hooks() {
        Thread main = Thread.currentThread();
        Hook sumsTwice = (on, bucket) -> on.allreduceAsync(bucket.buffer(), Op.SUM).then(() -> {
            assertSame(main, Thread.currentThread());
            FloatBuffer flat = bucket.buffer().floats();
            for (int i = 0; i < flat.capacity(); ++i) flat.put(i, flat.get(i) / 2);
            // a continuation may go on with another
            return on.allreduceAsync(bucket.buffer(), Op.SUM);
        });
        Hook inPlace = (on, bucket) -> {
            on.allreduce(bucket.buffer(), bucket.op());
            for (Bucket.Gradient each : bucket.gradients()) {
                FloatBuffer values = each.memory().floats();
                for (int i = 0; i < values.capacity(); ++i)
                    values.put(i, values.get(i) + each.parameter().index());
                for (int i = 0; i < values.capacity(); ++i)
                    values.put(i, values.get(i) + 1 - each.parameter().index());
            }
            return null;
        };
        Hook inDouble = (on, bucket) -> {
            FloatBuffer flat = bucket.buffer().floats();
            DoubleBuffer wide = Support.bytes(8 * flat.capacity()).asDoubleBuffer();
            for (int i = 0; i < flat.capacity(); ++i) wide.put(i, flat.get(i));
            bucket.setBuffer(wide);
            System.gc();
            return on.allreduceAsync(wide, Op.AVG);
        };
        float[] mean = mean();
        float[] more = mean.clone();
        for (int i = 0; i < SIZE; ++i) more[i] += 1;
        try (Context ctx = make(group, new ContextOptions())) {
            ctx.setHook(sumsTwice);
            train(ctx, 2, scaled(sum(), world / 2f));
            ctx.setHook(inPlace);
            train(ctx, 2, more);
            ctx.setHook(inDouble);
            train(ctx, 2, mean);
            ctx.setHook(null);
            train(ctx, 2, mean);
            assertEquals("allreduce", ctx.hookName());
            List<String> reduced = new ArrayList<>();
            List<Integer> after = new ArrayList<>();
            ctx.hookThen((on, bucket) -> after.add(bucket.index()));
            ctx.setReducedFunction((parameter, used) -> reduced.add(parameter.name() + used));
            train(ctx, 1, mean);
            assertEquals(List.of("p0true", "p1true", "p2true", "p3true"),
                    reduced.stream().sorted().toList());
            assertEquals(ctx.bucketCount(), after.size());
            ctx.setReducedFunction(null);
            ctx.useHook("powersgd", "rank=1,start=2,warm_start=1");
            ctx.loadHookState(ctx.hookState(), false);
            ctx.compressHook(Dtype.BF16);
            assertTrue(ctx.hookName().contains("powersgd"));
            ctx.useHook("post_local_sgd", "start=5");
        }
    }

    // A fragment leaves, travels for a step as an outer gradient, and is mixed with what is there then.
    private void streaming(Averager averager, FloatBuffer weight) {
        averager.setOuter(Averager.Outer.SGD, 1, 0, 0, 1, 1, 0.5, Dtype.BF16);
        averager.setFragments(0);
        averager.steps(12);
        weight.put(0, 4);
        assertEquals(world, averager.step()); // the outer parameter
        assertEquals(0, averager.step());
        weight.put(0, 2);
        assertEquals(0, averager.step()); // leaves
        weight.put(0, 1);
        assertEquals(world, averager.step());
        assertEquals(1.5f, weight.get(0));
        averager.goBack();
        assertEquals(2f, weight.get(0));
        assertEquals(16, averager.steps());
        averager.steps(11);
    }

    // DiLoCo's, until the weight is the average of all ranks again.
    private void outerOptimizer(Averager averager, FloatBuffer weight) {
        averager.setOuter(Averager.Outer.NESTEROV, 0.5, 0.5, 0);
        weight.put(0, 4);
        assertEquals(world, averager.step()); // the outer parameter
        byte[] state = averager.state();
        for (int again = 0; again < 2; ++again) {
            averager.loadState(state);
            assertEquals(9, averager.steps());
            averager.steps(10);
            weight.put(0, 2);
            assertEquals(world, averager.step());
            assertEquals(2.5f, weight.get(0));
        }
        streaming(averager, weight);
        averager.setOuter(Averager.Outer.NONE, 0, 0, 0);
        averager.step();
        weight.put(0, rank);
        assertEquals(world, averager.step());
        assertEquals((world - 1) / 2f, weight.get(0), 1e-6);
    }

    @Test
    void buffersAndAverager() {
        try (Context ctx = new Context(group)) {
            FloatBuffer weight = full(5, rank);
            FloatBuffer means = full(5, rank);
            ctx.register("w", weight, full(5, 0));
            ctx.registerBuffer("means", means);
            ctx.commit();
            assertEquals(0, means.get(0));
            List<Group> lent = new ArrayList<>();
            ctx.setBufferHook((on, buffers) -> {
                lent.add(on);
                on.allreduce(buffers.get(0), Op.MAX);
            });
            List<Integer> results = new ArrayList<>();
            try (Averager averager = new Averager(ctx, 2)) {
                for (int step = 0; step < 3; ++step) {
                    ctx.stepBegin();
                    ctx.gradReady(0);
                    ctx.finalizeStep();
                    means.put(0, rank);
                    weight.put(0, rank);
                    results.add(averager.step());
                }
                assertEquals(3, averager.steps());
                averager.steps(8);
                assertEquals(8, averager.steps());
                outerOptimizer(averager, weight);
            }
            assertEquals(List.of(world, 0, world), results);
            assertEquals((world - 1) / 2f, weight.get(0), 1e-6);
            ctx.stepBegin();
            assertEquals(world - 1, means.get(0));
            for (Group each : lent)
                raises(IllegalStateException.class, "buffer hook", each::barrier);
            ctx.gradReady(0);
            ctx.finalizeStep();
            weight.put(1, rank);
            ctx.averageParameters(null);
            assertEquals((world - 1) / 2f, weight.get(1), 1e-6);
        }
    }

    /** A rank in join lets go of what the hook gave to the operations of past steps. The last rank
     * is the one with inputs. */
    @Test
    void joinLetsGoOfPastSteps() {
        final int steps = 20;
        List<WeakReference<ByteBuffer>> given = new ArrayList<>();
        try (Context ctx = make(group, new ContextOptions().join(true))) {
            ctx.setHook((on, bucket) -> {
                ByteBuffer copy = Support.bytes(4 * bucket.buffer().floats().capacity());
                given.add(new WeakReference<>(copy));
                if (bucket.step() == steps - 1 && bucket.isLast()) {
                    Support.collectUntil(
                            ()
                                    -> given.stream().filter(each -> each.get() != null).count()
                                    <= 2 * ctx.bucketCount());
                }
                return on.allreduceAsync(copy.asFloatBuffer(), bucket.op());
            });
            for (int step = 0; step < steps && rank == world - 1; ++step) {
                ctx.stepBegin();
                ctx.parameters().forEach(Ranks::announce);
                ctx.finalizeStep();
            }
            ctx.join();
            assertEquals(steps * ctx.bucketCount(), given.size());
        }
    }

    /** A hook that throws breaks the context: here with its own exception, on the other ranks with
     * an error. */
    @Test
    void otherGroupGoesOn() {
        Group doomed = group.split(0, 0);
        Context ctx = make(doomed, new ContextOptions());
        IOException own = new IOException("hook of rank 0");
        ctx.setHook((on, bucket) -> {
            if (rank == 0 && bucket.index() == 1) throw own;
            return on.allreduceAsync(bucket.buffer(), bucket.op());
        });
        group.barrier(); // nobody is still in commit when the group breaks
        DdpException thrown = raises(DdpException.CallbackFailed.class,
                "java.io.IOException: hook of rank 0", () -> train(ctx, 1, mean()));
        if (rank == 0) {
            assertSame(own, thrown.getCause());
        } else {
            assertEquals(0, thrown.rank());
        }
        Group next = group.split(0, 0);
        ctx.setGroup(next);
        ctx.setHook(null);
        train(ctx, 2, mean());
        Group third = group.split(0, 0);
        ctx.setGroup(third);
        IllegalArgumentException unchecked = new IllegalArgumentException("mine");
        ctx.setHook((on, bucket) -> {
            if (rank == 0) throw unchecked;
            return on.allreduceAsync(bucket.buffer(), bucket.op());
        });
        group.barrier();
        RuntimeException second = assertThrows(RuntimeException.class, () -> train(ctx, 1, mean()));
        if (rank == 0) assertSame(unchecked, second);
        ctx.close();
    }
}
