package org.libddp;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.libddp.Ranks.SIZE;
import static org.libddp.Ranks.announce;
import static org.libddp.Ranks.assertClose;
import static org.libddp.Ranks.gradient;
import static org.libddp.Ranks.group;
import static org.libddp.Ranks.make;
import static org.libddp.Ranks.mean;
import static org.libddp.Ranks.mine;
import static org.libddp.Ranks.rank;
import static org.libddp.Ranks.scaled;
import static org.libddp.Ranks.sum;
import static org.libddp.Ranks.train;
import static org.libddp.Ranks.value;
import static org.libddp.Ranks.world;
import static org.libddp.Support.array;
import static org.libddp.Support.full;
import static org.libddp.Support.raises;

import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;

/** Everything that needs several ranks, against plain loops. ddprun starts it; all ranks run the
 * same tests in the same order. */
@TestMethodOrder(MethodOrderer.MethodName.class)
class RanksTest {
    @Test
    void collectives() {
        FloatBuffer recv = mine(SIZE);
        group.allreduce(recv, Op.SUM);
        assertArrayEquals(sum(), array(recv));
        FloatBuffer to = full(SIZE, 0);
        group.allreduce(Memory.of(mine(SIZE)), Memory.of(to), Op.AVG);
        assertClose(mean(), to);
        FloatBuffer gathered = full(world * SIZE, 0);
        group.allgather(mine(SIZE), gathered);
        for (int of = 0; of < world; ++of)
            assertEquals(value(of, 17), gathered.get(of * SIZE + 17));
        FloatBuffer all = full(world * 5, 0);
        for (int i = 0; i < world * 5; ++i) all.put(i, rank + i);
        FloatBuffer part = full(5, 0);
        group.reduceScatter(all, part, Op.SUM);
        for (int i = 0; i < 5; ++i)
            assertEquals(world * (world - 1) / 2f + world * (rank * 5 + i), part.get(i));
        FloatBuffer sent = full(3, rank);
        group.broadcast(sent, 1);
        assertArrayEquals(new float[] {1, 1, 1}, array(sent));
        raises(IllegalArgumentException.class, "cannot be divided",
                () -> group.allgather((Memory) null, Memory.of(full(world + 1, 0))));
        group.barrier();
    }

    @Test
    void allToAll() {
        FloatBuffer send = full(world * 7, 0);
        for (int i = 0; i < world * 7; ++i) send.put(i, 1000 * rank + i);
        FloatBuffer recv = full(world * 7, 0);
        group.allToAll(send, recv);
        for (int i = 0; i < world * 7; ++i)
            assertEquals(1000 * (i / 7) + 7 * rank + i % 7, recv.get(i));
        // Rank `of` sends of + 2 * to elements to rank `to`.
        long[] sent = new long[world];
        long[] received = new long[world];
        int out = 0;
        int in = 0;
        for (int other = 0; other < world; ++other) {
            out += sent[other] = rank + 2 * other;
            in += received[other] = other + 2 * rank;
        }
        FloatBuffer uneven = full(out, 0);
        for (int to = 0, at = 0; to < world; ++to)
            for (int i = 0; i < sent[to]; ++i) uneven.put(at++, 10 * rank + to);
        FloatBuffer got = full(in, 0);
        group.allToAllAsync(Memory.of(uneven), sent, Memory.of(got), received).await();
        for (int of = 0, at = 0; of < world; ++of)
            for (int i = 0; i < received[of]; ++i) assertEquals(10 * of + rank, got.get(at++));
        raises(IllegalArgumentException.class, "cannot be divided",
                () -> group.allToAll(full(world + 1, 0), full(world + 1, 0)));
        raises(IllegalArgumentException.class, "recvCounts: there must be as many",
                ()
                        -> group.allToAll(Memory.of(uneven), sent, Memory.of(got),
                                java.util.Arrays.copyOf(received, world + 1)));
        raises(IllegalArgumentException.class, "negative",
                () -> group.allToAll(Memory.of(uneven), sent, Memory.of(got), new long[] {-1}));
    }

    @Test
    void asynchronously() {
        List<FloatBuffer> arrays = new ArrayList<>();
        List<Work> works = new ArrayList<>();
        for (int i = 0; i < 4; ++i) {
            arrays.add(mine(SIZE));
            works.add(group.allreduceAsync(arrays.get(i), Op.SUM));
        }
        FloatBuffer sent = full(2, rank);
        works.add(group.broadcastAsync(Memory.of(sent), 0));
        FloatBuffer gathered = full(world, 0);
        works.add(group.allgatherAsync(Memory.of(full(1, rank)), Memory.of(gathered)));
        works.add(group.barrierAsync());
        for (Work each : works) each.await();
        for (FloatBuffer each : arrays) assertArrayEquals(sum(), array(each));
        assertEquals(0, sent.get(1));
        assertEquals(world - 1, gathered.get(world - 1));
    }

    @Test
    void splitAndRoundRobin() {
        Group half = group.split(rank % 2, -rank);
        assertEquals((world + 1 - rank % 2) / 2, half.worldSize());
        half.close();
        assertNull(group.split(-1, 0));
        Group turns = Group.roundRobin(List.of(group.split(0, 0), group.split(0, 0)));
        try (Context ctx = make(turns, new ContextOptions())) {
            train(ctx, 3, mean());
        }
        turns.close();
    }

    @Test
    void votes() {
        try (Context ctx = make(group, new ContextOptions().votes(true))) {
            ctx.vote(Votes.STOP | Votes.USER << rank);
            ctx.voteLevel(rank + 3);
            train(ctx, 1, mean());
            Votes votes = ctx.votes();
            assertTrue(votes.any(Votes.STOP) && votes.all(Votes.STOP));
            for (int r = 0; r < world; ++r) assertTrue(votes.any(Votes.USER << r));
            assertTrue(!votes.all(Votes.STOP | Votes.USER) && !votes.any(Votes.CHECKPOINT));
            assertEquals(world + 2, votes.level());
            train(ctx, 1, mean());
            assertTrue(!ctx.votes().any(Votes.STOP | Votes.USER));
            assertEquals(0, ctx.votes().level());
            raises(DdpException.InvalidArgument.class, "from 0 to 32", () -> ctx.voteLevel(33));
            raises(DdpException.Unsupported.class, "has no name", () -> ctx.vote(1 << 15));
        }
        try (Context ctx = make(group, new ContextOptions())) {
            raises(DdpException.InvalidState.class, "votes(true)", () -> ctx.vote(Votes.STOP));
        }
    }

    /** Momentum, element by element; the values of ranks that update all. */
    @Test
    void shards() {
        float[][] expected = trainWithMomentum(null);
        for (Owner owner : Owner.values()) {
            float[][] found = trainWithMomentum(owner);
            for (int p = 0; p < 4; ++p) assertArrayEquals(expected[p], found[p]);
        }
        try (Context ctx = make(group, new ContextOptions().shard(true))) {
            raises(DdpException.InvalidArgument.class, "which is for Owner.WHOLE",
                    () -> ctx.setOwner(ctx.parameters().get(0), Owner.ELEMENTS, 2));
            ctx.parameters().forEach(Ranks::announce);
            ctx.finalizeStep();
            raises(DdpException.InvalidState.class, "call Context.publish after the optimizer",
                    () -> ctx.parameters().forEach(Ranks::announce));
            ctx.publish();
        }
        try (Context ctx = make(group, new ContextOptions())) {
            assertEquals(List.of(), ctx.pieces());
            raises(DdpException.InvalidState.class, "shard(true)", ctx::publish);
        }
    }

    /** Values after some steps whose gradients are whole numbers. owner: null: not sharded. */
    private static float[][] trainWithMomentum(Owner owner) {
        ContextOptions options = new ContextOptions().shard(owner != null).bucketCap(2000);
        try (Context ctx = new Context(group, options)) {
            for (int i = 0; i < 4; ++i)
                ctx.register("p" + i, full(SIZE, rank), i % 2 == 1 ? full(SIZE, 0) : null, SIZE);
            for (Parameter each : ctx.parameters())
                if (owner != null) ctx.setOwner(each, owner, owner == Owner.WHOLE ? 3 : 0);
            ctx.commit();
            List<Piece> pieces = owner != null ? ctx.pieces() : new ArrayList<>();
            if (owner == null) {
                for (Parameter each : ctx.parameters())
                    pieces.add(new Piece(each, 0, SIZE, true, each.data(), null));
            }
            float[][] speeds = new float[pieces.size()][];
            for (int i = 0; i < speeds.length; ++i)
                speeds[i] = new float[(int) pieces.get(i).count()];
            for (int step = 0; step < 4; ++step) {
                ctx.stepBegin();
                ctx.parameters().forEach(Ranks::announce);
                ctx.finalizeStep();
                for (int i = 0; i < speeds.length; ++i) {
                    Piece piece = pieces.get(i);
                    FloatBuffer value = piece.value().floats();
                    FloatBuffer gradient = piece.gradient() == null ? gradient(piece.parameter())
                                                                    : piece.gradient().floats();
                    assertEquals(piece.count(), value.remaining());
                    for (int k = 0; k < speeds[i].length; ++k) {
                        speeds[i][k] = 0.9f * speeds[i][k] + gradient.get(k);
                        value.put(k, value.get(k) - 0.01f * speeds[i][k]);
                    }
                }
                if (owner != null) {
                    ctx.publish();
                    ctx.parameters().forEach(ctx::awaitValue);
                }
            }
            return ctx.parameters()
                    .stream()
                    .map(p -> array(p.data().floats()))
                    .toArray(float[][] ::new);
        }
    }

    @Test
    void inPlace() {
        FloatBuffer weights = full(12, rank), gradients = full(14, 0), bias = gradients.duplicate();
        bias.position(12);
        try (Context ctx = new Context(group)) {
            List<Parameter> layers = ctx.parameter("layer")
                                             .data(weights)
                                             .shape(3, 2, 2)
                                             .grad(Memory.of(gradients.duplicate().limit(12)))
                                             .inPlace()
                                             .registerSlices();
            ctx.parameter("bias").grad(bias.slice()).inPlace().register();
            ctx.commit();
            assertEquals(0, layers.get(1).data().floats().get(3));
            assertEquals("layer[2]", layers.get(2).name());
            for (int step = 0; step < 3; ++step) {
                ctx.stepBegin();
                for (int i = 0; i < 14; ++i) gradients.put(i, rank + i);
                for (int p = 3; p >= 0; --p) ctx.gradReady(ctx.parameters().get(p));
                ctx.finalizeStep();
                for (int i = 0; i < 14; ++i) assertEquals((world - 1) / 2f + i, gradients.get(i));
                assertEquals((world - 1) / 2f + 8, layers.get(2).grad().floats().get(0));
            }
            assertEquals(1, ctx.bucketSizes(false).length);
        }
    }

    @Test
    void meanAndInitialValues() {
        try (Context ctx = make(group, new ContextOptions())) {
            assertEquals(0, ctx.parameters().get(0).data().floats().get(5));
            train(ctx, 3, mean());
            Stats stats = ctx.stats();
            assertEquals(List.of(3L, 3L, 4),
                    List.of(stats.steps(), stats.syncedSteps(), stats.paramCount()));
            long bytes = 0;
            for (long each : ctx.bucketSizes(false)) bytes += each;
            assertEquals(stats.paramBytes(), bytes);
            assertEquals(ctx.parameters(), ctx.readyOrder());
            assertEquals(ctx.parameterBucket(ctx.parameters().get(0)), 0);
            try (Context other = make(group, new ContextOptions().rebuild(false))) {
                other.adoptPlan(ctx.plan());
                train(other, 2, mean());
                assertEquals(ctx.plan(), other.plan());
            }
        }
    }

    @Test
    void noSync() {
        try (Context ctx = make(group, new ContextOptions())) {
            for (int step = 0; step < 2; ++step) {
                Context.NoSync apart = step == 0 ? ctx.noSync() : null;
                for (Parameter each : ctx.parameters()) {
                    FloatBuffer sums = gradient(each);
                    for (int i = 0; i < SIZE; ++i)
                        sums.put(i, (step == 0 ? 0 : sums.get(i)) + value(rank, i));
                    ctx.gradReady(each);
                }
                ctx.finalizeStep();
                if (apart != null) apart.close();
            }
            for (Parameter each : ctx.parameters())
                assertClose(scaled(sum(), 2f / world), gradient(each));
        }
    }

    @Test
    void put() {
        try (Context ctx = make(group, new ContextOptions())) {
            for (boolean add : new boolean[] {false, false, true, true}) {
                for (int step = 0; step < 2; ++step) {
                    Context.NoSync apart = step == 0 ? ctx.noSync() : null;
                    for (Parameter each : ctx.parameters()) ctx.put(each, mine(SIZE), add);
                    ctx.finalizeStep();
                    if (apart != null) apart.close();
                }
                for (Parameter each : ctx.parameters())
                    assertClose(scaled(sum(), (add ? 2f : 1f) / world), gradient(each));
            }
        }
    }

    @Test
    void check() {
        try (Group own = group.split(0, 0);
                Context ctx = make(own, new ContextOptions().check(true).checkInterval(1))) {
            train(ctx, 3, mean());
            DdpException late = raises(DdpException.InvalidState.class, "p2", () -> {
                ctx.parameters().forEach(
                        // another rank may hear of the mistake while it still announces
                        Ranks::announce);
                if (rank == 1) ctx.parameters().get(2).view().floats().put(5, 99);
                ctx.finalizeStep();
            });
            assertEquals(List.of(1, 2, 3L), List.of(late.rank(), late.param(), late.step()));
        }
    }

    @Test
    void aStepWithNanIsSkipped() {
        try (Group own = group.split(0, 0);
                Context ctx =
                        make(own, new ContextOptions().skipNonfinite(true).verifyInterval(1))) {
            train(ctx, 1, mean());
            DdpException bad = raises(DdpException.Nonfinite.class, "p2", () -> {
                for (Parameter each : ctx.parameters()) {
                    FloatBuffer gradient = mine(SIZE);
                    if (rank == 1 && each.index() == 2) gradient.put(5, Float.NaN);
                    each.put(gradient);
                }
                ctx.finalizeStep();
            });
            assertEquals(List.of(1, 2, 1L), List.of(bad.rank(), bad.param(), bad.step()));
            train(ctx, 1, mean());
        }
    }

    @Test
    void gradientsFromThreads() throws Exception {
        try (Context ctx = make(group, new ContextOptions())) {
            for (int step = 0; step < 3; ++step) {
                ctx.stepBegin();
                List<Thread> threads = new ArrayList<>();
                for (Parameter each : ctx.parameters())
                    threads.add(new Thread(() -> announce(each)));
                threads.forEach(Thread::start);
                for (Thread each : threads) each.join();
                ctx.finalizeStep();
                for (Parameter each : ctx.parameters()) assertClose(mean(), gradient(each));
            }
        }
    }

    @Test
    void collectingDuringTraining() throws Exception {
        AtomicBoolean stop = new AtomicBoolean();
        Thread collector = new Thread(() -> {
            while (!stop.get()) System.gc();
        });
        collector.start();
        try (Context ctx = make(group, new ContextOptions())) {
            train(ctx, 20, mean());
        } finally {
            stop.set(true);
            collector.join();
        }
    }

    @Test
    void optimizerWhileGradientsTravel() {
        try (Context ctx = make(group, new ContextOptions())) {
            ctx.stepBegin();
            ctx.parameters().forEach(Ranks::announce);
            ctx.finalizeAsync();
            for (Parameter each : ctx.parameters()) {
                ctx.awaitParameter(each);
                assertClose(mean(), gradient(each));
            }
            ctx.finalizeStep();
            ctx.stepBegin();
            ctx.gradReady(ctx.parameters().get(1));
            ctx.discard();
            train(ctx, 1, mean());
        }
    }

    /** F32 gradients of BF16 values: digits that BF16 does not have come through. */
    @Test
    void gradientsOfAnotherType() {
        try (Context ctx = new Context(group, new ContextOptions())) {
            FloatBuffer grad = Support.bytes(4).asFloatBuffer();
            Parameter viewed = ctx.parameter("viewed")
                                       .shape(1)
                                       .dtype(Dtype.BF16)
                                       .gradDtype(Dtype.F32)
                                       .register();
            Parameter given = ctx.parameter("given")
                                      .data(Memory.of(Support.bytes(2), Dtype.BF16))
                                      .grad(grad)
                                      .gradDtype(Dtype.F32)
                                      .register();
            ctx.commit();
            assertEquals(Dtype.BF16, given.dtype());
            assertEquals(Dtype.F32, given.gradDtype());
            float mine = 1 + rank / 4096f;
            viewed.put(Support.bytes(4).asFloatBuffer().put(0, mine));
            grad.put(0, mine);
            given.ready();
            ctx.finalizeStep();
            float mean = 1 + (world - 1) / 8192f;
            assertEquals(mean, viewed.view().floats().get(0), 2e-7f);
            assertEquals(mean, grad.get(0), 2e-7f);
        }
    }

    @Test
    void sparseAndFactors() {
        try (Context ctx = new Context(group, new ContextOptions().reduction(Reduction.SUM))) {
            Parameter sparse = ctx.parameter("sparse").shape(10, 2).sparse().register();
            Parameter factored = ctx.parameter("factored").shape(40, 30).factored().register();
            ctx.commit();
            LongBuffer rows = Support.bytes(16).asLongBuffer().put(0, rank).put(1, 9);
            ctx.gradReadySparse(sparse, rows, full(4, 1));
            ctx.gradReadyFactors(factored, mine(80), mine(60));
            ctx.finalizeStep();
            Context.Rows found = ctx.sparseGradient(sparse);
            assertEquals(world + 1, found.indices().count());
            for (int of = 0; of <= world; ++of) {
                assertEquals(of < world ? of : 9, found.indices().longs().get(of));
                assertEquals(of < world ? 1 : world, found.values().floats().get(2 * of));
            }
            float expected = 0;
            for (int of = 0; of < world; ++of)
                expected += value(of, 3) * value(of, 4) + value(of, 43) * value(of, 34);
            assertEquals(expected, factored.view().floats().get(3 * 30 + 4));
        }
    }

    @Test
    void shareOfABatch() {
        ContextOptions weighted = new ContextOptions().reduction(Reduction.WEIGHTED_MEAN);
        try (Context ctx = new Context(group, weighted)) {
            FloatBuffer data = full(1, 0), grad = full(1, 0);
            Parameter weight = ctx.register("w", data, grad);
            ctx.shareBatch(24L * world, 4, 0);
            ctx.commit();
            assertEquals(24L * rank, ctx.batchShare().begin());
            for (int step = 0; step < 20; ++step) {
                BatchShare mine = ctx.batchShare();
                ctx.setWeight(mine.size());
                ctx.stepBegin();
                grad.put(0, (mine.begin() + mine.end() - 1) / 2f);
                ctx.gradReady(weight);
                ctx.finalizeStep();
                assertEquals((24 * world - 1) / 2f, grad.get(0), 1e-4);
                ctx.batchTime(Duration.ofNanos(mine.size() * (rank == 0 ? 1_000_000 : 2_000)));
            }
            // Rank 0 keeps the least that it can have.
            if (rank == 0 && world > 1) assertEquals(4, ctx.batchShare().size());
        }
    }

    @Test
    void participation() {
        ContextOptions weighted =
                new ContextOptions().findUnused(true).reduction(Reduction.WEIGHTED_MEAN);
        try (Context ctx = make(group, weighted)) {
            Parameter used = ctx.parameters().get(1);
            ctx.setWeight(rank + 1);
            ctx.stepBegin();
            announce(used);
            ctx.markUnused(ctx.parameters().subList(2, 4));
            ctx.finalizeStep();
            float[] expected = new float[SIZE];
            for (int of = 0; of < world; ++of) {
                for (int i = 0; i < SIZE; ++i)
                    expected[i] += (of + 1) * value(of, i) / (world * (world + 1) / 2f);
            }
            assertClose(expected, gradient(used));
            assertEquals(List.of(false, true, false, false),
                    ctx.parameters().stream().map(ctx::isUsed).toList());
            ctx.setFrozen(ctx.parameters().subList(0, 1), true);
            ctx.skip(ctx.parameters().subList(2, 4), 0);
            assertEquals(List.of(false, false, true, true),
                    ctx.parameters().stream().map(ctx::isSkipped).toList());
        }
        try (Context ctx = make(group, new ContextOptions().join(true))) {
            for (int step = 0; step <= rank; ++step) {
                ctx.stepBegin();
                ctx.parameters().forEach(Ranks::announce);
                ctx.finalizeStep();
            }
            ctx.join();
        }
    }

    @Test
    void mismatchAndAbort() {
        try (Context ctx = new Context(group)) {
            ctx.parameter("w").shape(rank == 1 ? 3 : 2).register();
            raises(DdpException.Mismatch.class, "w", ctx::commit);
        }
        Group lonely = group.split(0, 0);
        group.barrier();
        if (rank == 0) lonely.abort("enough");
        DdpException.Aborted aborted = raises(DdpException.Aborted.class, "enough", () -> {
            lonely.barrier();
            lonely.barrier();
        });
        assertEquals(0, aborted.rank());
        assertThrows(DdpException.Aborted.class, lonely::check);
    }
}
