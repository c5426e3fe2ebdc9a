package org.libddp;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.libddp.Ranks.SIZE;
import static org.libddp.Ranks.group;
import static org.libddp.Ranks.make;
import static org.libddp.Ranks.mean;
import static org.libddp.Ranks.rank;
import static org.libddp.Ranks.world;
import static org.libddp.Support.array;
import static org.libddp.Support.full;
import static org.libddp.Support.raises;

import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;

/** Optimizers and norms on several ranks, against plain loops. */
@TestMethodOrder(MethodOrderer.MethodName.class)
class OptimizerTest {
    private static final int STEPS = 5;

    private static void step(Context ctx, Optimizer optimizer, boolean shard) {
        ctx.stepBegin();
        ctx.parameters().forEach(Ranks::announce);
        ctx.finalizeStep();
        optimizer.step(0.5);
        if (!shard) return;
        ctx.publish();
        ctx.parameters().forEach(ctx::awaitValue);
    }

    private static float[][] values(Context ctx) {
        return ctx.parameters()
                .stream()
                .map(p -> array(p.data().floats()))
                .toArray(float[][] ::new);
    }

    /** AdamW over a gradient that stays the same. */
    private static double[][] adamw(double value, double gradient, int steps, double decay) {
        double x = value, m = 0, v = 0;
        for (int t = 1; t <= steps; ++t) {
            double rate = t <= 3 ? 0.01 : 0.005;
            m = 0.9 * m + 0.1 * gradient;
            v = 0.99 * v + 0.01 * gradient * gradient;
            double a = m / (1 - Math.pow(0.9, t)) / (Math.sqrt(v / (1 - Math.pow(0.99, t))) + 1e-8);
            x -= rate * decay * x + rate * a;
        }
        return new double[][] {{x}, {m}, {v}};
    }

    private static Context train(boolean shard, List<Optimizer> made) {
        Context ctx = make(group, new ContextOptions().shard(shard));
        Optimizer optimizer = new Optimizer(ctx, "adamw", "lr=0.01,beta2=0.99");
        optimizer.set(ctx.parameters().get(1), "weight_decay", 0.5);
        for (int i = 0; i < STEPS; ++i) {
            if (i == 3) optimizer.set("lr", 0.005);
            step(ctx, optimizer, shard);
        }
        made.add(optimizer);
        return ctx;
    }

    @Test
    void valuesOfAPlainLoopInTheStep() {
        float[] mean = mean();
        try (Context ctx = make(group, new ContextOptions().shard(true));
                Optimizer optimizer = new Optimizer(ctx, "adamw", "lr=0.01,beta2=0.99")) {
            optimizer.inStep(0.5);
            for (int i = 0; i < 3; ++i) {
                ctx.stepBegin();
                ctx.parameters().forEach(Ranks::announce);
                ctx.finalizeStep();
                ctx.parameters().forEach(ctx::awaitValue);
            }
            for (float[] each : values(ctx))
                for (int i = 0; i < SIZE; ++i)
                    assertEquals(adamw(0, 0.5 * mean[i], 3, 0.01)[0][0], each[i], 1e-5);
            raises(DdpException.InvalidState.class, "has sent the values", () -> optimizer.step());
        }
    }

    @Test
    void valuesOfAPlainLoop() {
        float[] mean = mean();
        float[][] whole = null;
        for (boolean shard : new boolean[] {false, true}) {
            List<Optimizer> made = new ArrayList<>();
            try (Context ctx = train(shard, made); Optimizer optimizer = made.get(0)) {
                float[][] found = values(ctx);
                for (int p = 0; p < 4; ++p) {
                    for (int i = 0; i < SIZE; ++i) {
                        double[][] expected = adamw(0, 0.5 * mean[i], STEPS, p == 1 ? 0.5 : 0.01);
                        assertEquals(expected[0][0], found[p][i], 1e-5);
                    }
                    if (shard) assertArrayEquals(whole[p], found[p]);
                }
                whole = found;
                int elements = 0;
                for (ShardArray each : optimizer.state()) {
                    if (each.key().equals("step")) {
                        assertEquals(STEPS, each.data().longs().get(0));
                        assertEquals(List.of(0L, true), List.of(each.first(), each.replicated()));
                        continue;
                    }
                    assertEquals(!shard, each.replicated());
                    FloatBuffer numbers = each.data().floats();
                    for (int i = 0; i < numbers.remaining(); ++i) {
                        double[][] expected =
                                adamw(0, 0.5 * mean[(int) each.first() + i], STEPS, 0);
                        double want = expected[each.key().equals("exp_avg") ? 1 : 2][0];
                        assertEquals(want, numbers.get(i), 1e-5 * Math.max(1, want));
                        ++elements;
                    }
                }
                FloatBuffer all = full(1, elements);
                group.allreduce(all, Op.SUM);
                assertEquals(8 * SIZE * (shard ? 1 : world), all.get(0)); // two of each element
            }
        }
    }

    private static List<ShardArray> arrays(Context ctx, Optimizer optimizer) {
        List<ShardArray> all = new ArrayList<>(optimizer.state());
        for (Piece each : ctx.pieces()) all.add(ShardArray.of("value", each, each.value()));
        if (ctx.pieces().isEmpty())
            for (Parameter each : ctx.parameters())
                all.add(ShardArray.of("value", each, each.data()));
        return all;
    }

    private static Path folder() throws Exception {
        byte[] name = new byte[256];
        if (rank == 0) {
            byte[] made = Files.createTempDirectory("ddp").toString().getBytes();
            System.arraycopy(made, 0, name, 0, made.length);
        }
        java.nio.ByteBuffer sent = Support.bytes(256);
        sent.put(name).flip();
        group.broadcast(sent, 0);
        sent.duplicate().get(name);
        return Path.of(new String(name).trim());
    }

    /** 3 ranks save, and 2 or 1 of them go on as if nothing had been. */
    @Test
    void savedOnAllRanksAndLoadedOnFewer() throws Exception {
        for (boolean shard : new boolean[] {false, true}) {
            Path folder = folder();
            List<Optimizer> made = new ArrayList<>();
            Group fewer = group.split(rank < Math.max(1, world - 1) ? 0 : -1, 0);
            try (Context ctx = train(shard, made); Optimizer optimizer = made.get(0)) {
                ctx.saveShards(folder, arrays(ctx, optimizer), "step 5");
                float[][] saved = values(ctx);
                if (fewer != null) goOn(fewer, shard, folder, saved);
            }
            group.barrier();
            if (rank > 0) continue;
            try (var files = Files.list(folder)) {
                for (Path each : files.toList()) Files.delete(each);
            }
            Files.delete(folder);
        }
    }

    private static void goOn(Group fewer, boolean shard, Path folder, float[][] saved) {
        try (Context ctx = make(fewer, new ContextOptions().shard(shard));
                Optimizer optimizer = new Optimizer(ctx, "adamw", "lr=0.005,beta2=0.99")) {
            assertEquals("step 5", ctx.loadShards(folder, arrays(ctx, optimizer)));
            float[][] found = values(ctx);
            for (int p = 0; p < 4; ++p) assertArrayEquals(saved[p], found[p]);
            float[] mine = new float[SIZE]; // the mean of fewer ranks
            for (int of = 0; of < fewer.worldSize(); ++of)
                for (int i = 0; i < SIZE; ++i) mine[i] += Ranks.value(of, i) / fewer.worldSize();
            optimizer.set("weight_decay", 0);
            step(ctx, optimizer, shard);
            float[] before = mean();
            found = values(ctx);
            for (int i = 0; i < SIZE; ++i) {
                double[][] then = adamw(0, 0.5 * before[i], STEPS, 0);
                double g = 0.5 * mine[i];
                double m = 0.9 * then[1][0] + 0.1 * g, v = 0.99 * then[2][0] + 0.01 * g * g;
                double a = m / (1 - Math.pow(0.9, 6))
                        / (Math.sqrt(v / (1 - Math.pow(0.99, 6))) + 1e-8);
                assertEquals(saved[2][i] - 0.005 * a, found[2][i], 1e-5);
            }
        }
    }

    @Test
    void stateOutlivesTheOptimizer() {
        List<Optimizer> made = new ArrayList<>();
        Context ctx = train(false, made);
        FloatBuffer numbers = made.get(0).state().get(0).data().floats();
        float[] before = array(numbers);
        made.get(0).close();
        ctx.close();
        raises(IllegalStateException.class, "closed", () -> made.get(0).step());
        System.gc();
        assertArrayEquals(before, array(numbers));
        Context open = make(group, new ContextOptions());
        try (Optimizer optimizer = new Optimizer(open, "sgd", null)) {
            open.close();
            raises(IllegalStateException.class, "the context of this optimizer is closed",
                    optimizer::step);
            raises(IllegalStateException.class, "closed", optimizer::state);
        }
    }

    @Test
    void mistakes() {
        try (Context ctx = make(group, new ContextOptions().shard(true))) {
            raises(DdpException.InvalidArgument.class, "adamw",
                    () -> new Optimizer(ctx, "adam", null));
            raises(DdpException.InvalidArgument.class, "momentum",
                    () -> new Optimizer(ctx, "sgd", "beta1=1"));
            try (Optimizer optimizer = new Optimizer(ctx, "sgd", null)) {
                raises(DdpException.InvalidArgument.class, "rate", () -> optimizer.set("rate", 1));
                raises(DdpException.InvalidState.class, "no step has given means", optimizer::step);
                step(ctx, optimizer, true);
                raises(DdpException.InvalidState.class, "has sent the values", optimizer::step);
            }
            raises(IllegalArgumentException.class, "value of p0: it has",
                    () -> ShardArray.of("value", ctx.pieces().get(0), Memory.of(full(1, 0))));
            raises(DdpException.class, "no complete save",
                    () -> ctx.loadShards(Path.of("/nowhere"), List.of()));
        }
    }

    @Test
    void norms() {
        double squares = 0, largest = 0, sum = 0;
        for (float each : mean()) {
            squares += 4.0 * each * each;
            largest = Math.max(largest, each);
            sum += each;
        }
        for (boolean shard : new boolean[] {false, true}) {
            try (Context ctx = new Context(group, new ContextOptions().shard(shard))) {
                for (int i = 0; i < 4; ++i) ctx.register("p" + i, full(SIZE, 0), SIZE);
                List<Parameter> second = List.of(ctx.parameters().get(1));
                int all = ctx.trackGradNorm(2);
                int most = ctx.trackGradNorm(Double.POSITIVE_INFINITY, second);
                int magnitudes = ctx.trackGradNorm(1, second);
                raises(IllegalArgumentException.class, "no parameters",
                        () -> ctx.trackGradNorm(2, List.of()));
                raises(DdpException.InvalidArgument.class, "1, 2 or infinity",
                        () -> ctx.trackGradNorm(3));
                ctx.commit();
                raises(DdpException.InvalidState.class, "", () -> ctx.gradNorm(all));
                try (Optimizer optimizer = new Optimizer(ctx, "sgd", "lr=1")) {
                    ctx.stepBegin();
                    ctx.parameters().forEach(Ranks::announce);
                    ctx.finalizeStep();
                    assertEquals(Math.sqrt(squares), ctx.gradNorm(all), 1e-6 * squares);
                    assertEquals(largest, ctx.gradNorm(most), 1e-6 * largest);
                    assertEquals(sum, ctx.gradNorm(magnitudes), 1e-6 * sum);
                    raises(DdpException.InvalidArgument.class, "max_norm",
                            () -> ctx.clipGradNorm(all, -1));
                    assertEquals(Math.min(1, 10 / (ctx.gradNorm(all) + 1e-6)),
                            ctx.clipFactor(all, 10), 1e-12);
                    assertEquals(ctx.gradNorm(all), ctx.clipGradNorm(all, 10));
                    optimizer.step();
                    if (shard) {
                        ctx.publish();
                        ctx.parameters().forEach(ctx::awaitValue);
                    }
                    float[] mean = mean();
                    for (float[] each : values(ctx))
                        for (int i = 0; i < SIZE; ++i)
                            assertEquals(-mean[i] * 10 / Math.sqrt(squares), each[i], 1e-6);
                }
                ctx.stepBegin();
                for (Parameter each : ctx.parameters())
                    each.put(full(SIZE, each.index() == 1 && rank == 0 ? Float.NaN : 1));
                ctx.finalizeStep();
                assertEquals(Double.NaN, ctx.gradNorm(all));
                assertEquals(1,
                        raises(DdpException.Nonfinite.class, "'p1'", () -> ctx.clipGradNorm(all, 1))
                                .param());
            }
        }
    }
}
