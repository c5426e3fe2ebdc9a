package org.libddp;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.libddp.Support.raises;

import java.nio.FloatBuffer;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** An elastic job of one rank. tests/dist/elastic has jobs that lose ranks. */
class ElasticTest {
    private final Store store = new Store("tcp://127.0.0.1:0", new StoreOptions().server(true));

    @AfterEach
    void closeStore() {
        store.close();
    }

    private ElasticOptions options() {
        return new ElasticOptions()
                .group(new GroupOptions().store(store).timeout(Duration.ofSeconds(20)))
                .maxWorld(1);
    }

    private static Context context(Elastic job, FloatBuffer gradient) {
        Context made = new Context(job.group());
        made.register("w", Support.full(3, 0), gradient);
        made.commit();
        job.addContext(made);
        return made;
    }

    @Test
    void shards() {
        FloatBuffer value = Support.full(3, 0), gradient = Support.full(3, 0);
        try (Elastic job = new Elastic(options());
                Context ctx = new Context(job.group(), new ContextOptions().shard(true))) {
            ctx.register("w", value, gradient);
            ctx.commit();
            job.addContext(ctx);
            try (Optimizer optimizer = new Optimizer(ctx, "sgd", "lr=1,momentum=0.5")) {
                assertTrue(job.begin().changed());
                assertEquals(false, job.recallShards(ctx, optimizer.state()));
                job.keepShards(ctx, optimizer.state(), 0, Keep.AT_NEIGHBOUR);
                for (int step = 0; step < 2; ++step) {
                    assertEquals(step, job.begin().step());
                    ctx.awaitValue(ctx.parameters().get(0));
                    gradient.put(1, 1);
                    ctx.gradReady(0);
                    ctx.finalizeStep();
                    optimizer.step();
                    ctx.publish();
                    job.commit();
                    int next = step + 1;
                    raises(DdpException.InvalidArgument.class, "step is 7",
                            () -> job.keepShards(ctx, optimizer.state(), 7, Keep.AT_NEIGHBOUR));
                    job.keepShards(ctx, optimizer.state(), next,
                            step == 0 ? Keep.AT_NEIGHBOUR : Keep.IN_CHECKPOINT);
                }
                raises(DdpException.InvalidState.class, "roster is the same",
                        () -> job.recallShards(ctx, optimizer.state()));
                ctx.awaitValue(ctx.parameters().get(0));
                assertEquals(-2.5f, value.get(1));
            }
        }
    }

    @Test
    void steps() {
        FloatBuffer gradient = Support.full(3, 0);
        try (Elastic job = new Elastic(options()); Context ctx = context(job, gradient);
                Averager averager = new Averager(ctx, 5)) {
            raises(DdpException.InvalidState.class, "outer optimizer",
                    () -> job.addAverager(averager));
            averager.setOuter(Averager.Outer.NESTEROV, 0.7, 0.9, 0);
            job.addAverager(averager);
            job.addState("momentum", Support.full(3, 0));
            job.addState("bytes", Support.bytes(5));
            job.setStep(7);
            for (int step = 7; step < 10; ++step) {
                boolean first = step == 7;
                ElasticStep now = job.begin();
                assertEquals(
                        new ElasticStep(step, 1, 0, 1, first, first ? 1 : 0, 0, false, now.fence()),
                        now);
                assertTrue(now.fence() > 0);
                assertEquals(List.of(0, 1), List.of(job.group().rank(), job.group().worldSize()));
                gradient.put(0, step);
                ctx.gradReady(0);
                ctx.finalizeStep();
                assertEquals(step, gradient.get(0));
                averager.step();
                job.commit();
                job.confirmMember();
            }
            job.announceLeave();
            while (!job.begin().leaving()) {
                averager.step();
                job.commit();
            }
            assertEquals(1, averager.steps() % 5); // right after an outer step
            job.leave();
            assertEquals(1, job.group().worldSize());
        }
    }

    @Test
    void shares() {
        assertEquals(List.of(new Shard(0, 3), new Shard(3, 5), new Shard(5, 7)),
                List.of(Shard.of(7, 0, 3), Shard.of(7, 1, 3), Shard.of(7, 2, 3)));
        assertEquals(0, Shard.of(1, 1, 2).size());
        raises(DdpException.InvalidArgument.class, "rank is 2", () -> Shard.of(1, 2, 2));
    }

    @Test
    void errors() {
        try (Elastic job = new Elastic(options())) {
            assertThrows(DdpException.InvalidState.class, job::commit);
            assertThrows(DdpException.InvalidState.class,
                    () -> job.addContext(new Context(job.group())));
            job.addState("a", Support.full(3, 0));
            raises(DdpException.AlreadyExists.class, "'a'",
                    () -> job.addState("a", Support.full(3, 0)));
            raises(IllegalArgumentException.class, "state: the buffer is on the Java heap",
                    () -> job.addState("b", FloatBuffer.allocate(3)));
            raises(IllegalArgumentException.class, "state: the buffer is read-only",
                    () -> job.addState("b", Support.full(3, 0).asReadOnlyBuffer()));
            assertThrows(DdpException.InvalidArgument.class, () -> job.setStep(-1));
            assertThrows(
                    DdpException.InvalidArgument.class, () -> new Elastic(options().minWorld(-1)));
            raises(IllegalArgumentException.class, "settle",
                    () -> new Elastic(options().settle(Duration.ZERO)));
            raises(DdpException.InvalidArgument.class, "rank",
                    ()
                            -> new Elastic(new ElasticOptions().group(
                                    new GroupOptions().store(store).rank(0).worldSize(1))));
            job.begin();
            assertThrows(DdpException.InvalidState.class,
                    () -> job.addState("late", Support.full(3, 0)));
        }
    }

    @Test
    void closedAverager() {
        try (Elastic job = new Elastic(options()); Context ctx = context(job, Support.full(3, 0))) {
            Averager averager = new Averager(ctx, 5);
            averager.setOuter(Averager.Outer.NESTEROV, 0.7, 0.9, 0);
            job.addAverager(averager);
            job.begin();
            averager.close();
            for (Executable each : List.<Executable>of(job::begin, job::commit, job::leave)) {
                raises(IllegalStateException.class, "an averager of this job is closed", each);
            }
        }
    }

    @Test
    void closed() {
        Elastic job = new Elastic(options());
        Context ctx = context(job, Support.full(3, 0));
        Group group = job.group();
        group.close();
        assertEquals(0, group.rank());
        job.begin();
        ctx.close();
        for (Executable each : List.<Executable>of(job::begin, job::commit, job::leave)) {
            raises(IllegalStateException.class, "a context of this job is closed", each);
        }
        job.close();
        job.close();
        for (Executable each : List.<Executable>of(job::begin, job::group, group::rank,
                     group::barrier, () -> new Context(group))) {
            raises(IllegalStateException.class, "closed", each);
        }
    }
}
