package org.libddp;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.libddp.Support.raises;

import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

/** Misuse is an exception, of the class that its status says, and never a crash. */
class ErrorsTest {
    private final Group group = Support.alone();

    private Context context(ContextOptions options) {
        return context(options, 2);
    }

    private Context context(ContextOptions options, int count) {
        Context made = new Context(group, options);
        for (int i = 0; i < count; ++i) made.parameter("p" + i).shape(3).register();
        made.commit();
        return made;
    }

    private Context context() {
        return context(new ContextOptions());
    }

    @Test
    void statusAndNames() {
        Context ctx = context();
        DdpException twice = raises(DdpException.InvalidState.class, "p1", () -> {
            ctx.gradReady(1);
            ctx.gradReady(1);
        });
        assertEquals(ddp.DDP_ERROR_INVALID_STATE, twice.status());
        DdpException missing = raises(DdpException.MissingGradient.class, "p0", ctx::finalizeStep);
        assertEquals(List.of(0, 0, 0L), List.of(missing.param(), missing.rank(), missing.step()));
    }

    @Test
    void wordsOfJava() {
        Map<String, String> words = Map.ofEntries(Map.entry("ddp_step_begin", "Context.stepBegin"),
                Map.entry("ddp_grad_ready()", "Context.gradReady"),
                Map.entry("ddp_finalize", "Context.finalizeStep"),
                Map.entry("ddp_use_hook", "Context.useHook"),
                Map.entry("ddp_set_comm_hook", "Context.setHook"),
                Map.entry("ddp_group_create", "Group"), Map.entry("ddp_group_free", "Group.close"),
                Map.entry("ddp_group_options_init_sized", "GroupOptions"),
                Map.entry("ddp_store_wait", "Store.await"),
                Map.entry("ddp_elastic_begin", "Elastic.begin"),
                Map.entry("DDP_CONTEXT_JOIN", "join(true)"),
                Map.entry("DDP_CONTEXT_NO_REBUILD", "rebuild(false)"),
                Map.entry("DDP_GROUP_DETERMINISTIC", "deterministic(true)"),
                Map.entry("DDP_PARAM_SPARSE", "sparse()"),
                Map.entry("DDP_REDUCTION_WEIGHTED_MEAN", "Reduction.WEIGHTED_MEAN"),
                Map.entry("DDP_ERROR_TIMEOUT", "DdpException.Timeout"),
                Map.entry("DDP_ERROR_CALLBACK", "DdpException.CallbackFailed"),
                Map.entry("DDP_SECRET_FILE", "DDP_SECRET_FILE"),
                Map.entry("ddp_nothing", "ddp_nothing"),
                Map.entry("options->flags: DDP_CONTEXT_CHECK", "check(true)"),
                Map.entry("options->bucket_caps[1]", "bucketCaps[1]"));
        words.forEach((c, java)
                              -> assertEquals("call " + java + ", first",
                                      Words.inJava("call " + c + ", first")));
    }

    /** A function or flag that is new in C fails here until Java has a name for it. */
    @Test
    void everyNameOfCHasOneOfJava() throws ReflectiveOperationException {
        Set<String> unused = Set.of("ddp_free", "ddp_dtype_name", "ddp_dtype_size",
                "ddp_error_bucket", "ddp_error_code", "ddp_error_free", "ddp_error_message",
                "ddp_error_param", "ddp_error_rank", "ddp_error_step", "ddp_layout_free",
                "ddp_param_desc_init_sized", "ddp_status_name", "ddp_error_create",
                // reached through org.libddp.ddp alone
                "ddp_set_update", "ddp_wait_value_on");
        for (String name : Words.names()) {
            String word = Words.inJava(name);
            assertEquals(List.of(), Support.namesOfC(word), name);
            if (!name.startsWith("ddp_") || unused.contains(name)
                    || word.startsWith("Context.useHook(\""))
                continue;
            String[] parts = word.split("\\.");
            Class<?> owner = Class.forName(
                    (parts[0].equals("Thread") ? "java.lang." : "org.libddp.") + parts[0]);
            if (parts.length == 1) continue; // a constructor
            assertTrue(Arrays.stream(owner.getMethods())
                               .anyMatch(each -> each.getName().equals(parts[1])),
                    name + ": " + word);
        }
        for (String name : Words.names()) {
            for (String prefix : List.of("DDP_CONTEXT_", "DDP_GROUP_")) {
                if (!name.startsWith(prefix) || name.equals("DDP_GROUP_OR_ALONE")) continue;
                String option = Words.inJava(name).replaceAll("\\(.*", "");
                Class<?> owner =
                        prefix.equals("DDP_CONTEXT_") ? ContextOptions.class : GroupOptions.class;
                owner.getMethod(option, boolean.class);
            }
        }
        for (String name : Words.OTHER.keySet()) assertTrue(Words.names().contains(name), name);
    }

    @Test
    void arguments() {
        Context ctx = new Context(group);
        FloatBuffer good = Support.floats(1, 2, 3);
        Parameter first = ctx.register("a", good);
        raises(DdpException.AlreadyExists.class, "'a'",
                () -> ctx.parameter("a").shape(1).register());
        raises(DdpException.InvalidState.class, "Context.commit", () -> ctx.gradReady(0));
        raises(DdpException.InvalidArgument.class, "nope", () -> ctx.useHook("nope", null));
        raises(IllegalArgumentException.class, "name: text may not contain",
                () -> new Group(new GroupOptions().name("a\0b")));
        raises(IllegalArgumentException.class, "bucketCap: -1",
                () -> new Context(group, new ContextOptions().bucketCap(-1)));
        raises(IllegalArgumentException.class, "bucketCaps: -5",
                () -> new Context(group, new ContextOptions().bucketCaps(1, -5)));
        raises(IllegalArgumentException.class, "uses: -1",
                () -> ctx.parameter("u").shape(1).uses(-1));
        raises(IllegalArgumentException.class, "timeout",
                () -> new Group(new GroupOptions().timeout(Duration.ZERO)));
        raises(IllegalArgumentException.class, "another context", () -> context().gradReady(first));
        raises(DdpException.InvalidArgument.class, "rank",
                ()
                        -> new Group(new GroupOptions().rank(3).worldSize(2).initMethod(
                                "tcp://127.0.0.1:1")));
        ctx.commit();
        for (int wrong : new int[] {-1, 2, Integer.MAX_VALUE, Integer.MIN_VALUE}) {
            raises(DdpException.InvalidArgument.class, "parameter", () -> ctx.gradReady(wrong));
        }
        raises(IllegalArgumentException.class, "groupSizes",
                () -> new Averager(ctx, new long[] {1, 2}, new int[] {1}, 0));
    }

    @Test
    void textIsUtf8EverywhereAndBack() {
        try (Context ctx = new Context(group); Store store = group.store()) {
            // beyond the characters that Java's native text has as UTF-8
            String name = "größe \ud83d\ude00";
            ctx.parameter(name).shape(1).register();
            ctx.commit();
            assertEquals(0, ctx.parameters().get(0).index());
            assertTrue(ctx.plan().contains(name));
            raises(DdpException.AlreadyExists.class, name, () -> {
                Context other = new Context(group);
                other.parameter(name).shape(1).register();
                other.parameter(name).shape(1).register();
            });
            store.set(name, name);
            assertEquals(List.of(name), store.keys("gr"));
        }
    }

    @Test
    void closed() {
        Context ctx = context();
        FloatBuffer view = ctx.parameters().get(0).view().floats();
        Work work = group.barrierAsync();
        ctx.close();
        ctx.close();
        raises(IllegalStateException.class, "context: it is closed", () -> ctx.gradReady(0));
        raises(IllegalStateException.class, "closed", ctx::finalizeStep);
        raises(IllegalStateException.class, "closed", ctx::stepBegin);
        raises(IllegalStateException.class, "closed", ctx::stats);
        raises(IllegalStateException.class, "closed", ctx.parameters().get(0)::view);
        raises(IllegalStateException.class, "closed", () -> ctx.setHook((g, b) -> null));
        view.put(0, 1); // its memory stays
        work.await();
        work.close();
        raises(IllegalStateException.class, "work: it is closed", work::await);
        Context open = context();
        group.close();
        group.close();
        raises(IllegalStateException.class, "group: it is closed", group::barrier);
        raises(IllegalStateException.class, "group: it is closed", () -> open.setGroup(group));
        raises(IllegalStateException.class, "groups: it is closed",
                () -> Group.roundRobin(List.of(group)));
        raises(IllegalStateException.class, "closed", () -> new Context(group));
        assertEquals("Group, closed", group.toString());
        Store store = new Store("tcp://127.0.0.1:0", new StoreOptions().server(true));
        store.close();
        raises(IllegalStateException.class, "store: it is closed", () -> store.set("a", "b"));
        raises(IllegalStateException.class, "closed",
                () -> new Group(new GroupOptions().rank(0).worldSize(1).store(store)));
    }

    private void step(ContextOptions options, Hook hook) {
        try (Group own = Support.alone(); Context ctx = new Context(own, options)) {
            for (int i = 0; i < 2; ++i) ctx.parameter("p" + i).shape(3).register();
            ctx.commit();
            ctx.setHook(hook);
            for (Parameter each : ctx.parameters()) each.put(Support.full(3, 1));
            ctx.finalizeStep();
        }
    }

    @Test
    void whatHooksReturn() {
        ContextOptions twoBuckets = new ContextOptions().bucketCap(4).firstBucketCap(4);
        List<Work> kept = new ArrayList<>();
        Hook sameAgain = (on, bucket) -> {
            kept.add(kept.isEmpty() ? on.barrierAsync() : kept.get(0));
            return kept.get(0);
        };
        IllegalStateException twice = raises(IllegalStateException.class,
                "the hook " + sameAgain.getClass().getName() + " returned a Work",
                () -> step(twoBuckets, sameAgain));
        assertTrue(twice.getMessage().contains("once") && twice.getMessage().contains("null"),
                twice.getMessage());
        raises(IllegalStateException.class, "closed",
                () -> step(new ContextOptions(), (on, bucket) -> {
                    Work work = on.barrierAsync();
                    work.await();
                    work.close();
                    return work;
                }));
        raises(IllegalStateException.class, "the continuation ",
                () -> step(new ContextOptions(), (on, bucket) -> {
                    Work closed = on.barrierAsync();
                    closed.close();
                    return on.barrierAsync().then(() -> closed);
                }));
        step(new ContextOptions(), (on, bucket) -> null);
        step(new ContextOptions(),
                // of another group
                (on, bucket) -> group.allreduceAsync(bucket.buffer(), bucket.op()));
    }

    /** The store's wait is cut short or ends; in no order of events does anything crash. */
    @Test
    void closingWhileAnotherThreadIsInACall() throws Exception {
        for (int round = 0; round < 20; ++round) {
            Store store = new Store("tcp://127.0.0.1:0", new StoreOptions().server(true));
            Context ctx = context();
            CountDownLatch inside = new CountDownLatch(2);
            AtomicReference<Throwable> unexpected = new AtomicReference<>();
            Thread waiter = new Thread(() -> {
                inside.countDown();
                try {
                    store.get("never", Duration.ofMillis(30));
                } catch (DdpException | IllegalStateException expected) {
                    return;
                }
                unexpected.set(new AssertionError("a value that nobody set"));
            });
            Thread stepper = new Thread(() -> {
                inside.countDown();
                try {
                    while (true) {
                        ctx.stepBegin();
                        ctx.gradReady(0);
                        ctx.gradReady(1);
                        ctx.finalizeStep();
                    }
                } catch (IllegalStateException expected) {
                    return;
                } catch (Throwable other) {
                    unexpected.set(other);
                }
            });
            waiter.start();
            stepper.start();
            inside.await();
            Thread.sleep(round % 4);
            ctx.close();
            store.close();
            waiter.join();
            stepper.join();
            assertNull(unexpected.get());
        }
    }

    @Test
    void viewsOutliveEverything() {
        Context ctx = context(new ContextOptions().bucketCap(24).firstBucketCap(24), 3);
        FloatBuffer old = ctx.parameters().get(1).view().floats();
        long before = ctx.gradView(ctx.parameters().get(1)).address;
        for (int step = 0; step < 2;
                // the second stepBegin rebuilds the buckets: p1 leaves p2 for p0, and views move
                ++step) {
            ctx.stepBegin();
            for (Parameter each : ctx.parameters()) each.put(Support.full(3, each.index() + 1));
            ctx.finalizeStep();
        }
        assertEquals(2, ctx.layoutGeneration());
        assertNotEquals(before, ctx.gradView(ctx.parameters().get(1)).address);
        FloatBuffer now = ctx.parameters().get(1).view().floats();
        group.close();
        old.put(0, 5);
        assertArrayEquals(new float[] {2, 2, 2}, Support.array(now));
    }

    @Test
    void store() {
        Duration soon = Duration.ofMillis(50);
        try (Store store = new Store("tcp://127.0.0.1:0",
                     new StoreOptions().server(true).timeout(Duration.ofSeconds(5)))) {
            store.set("a", new byte[] {1});
            store.set("b", "é");
            assertEquals("é", new String(store.get("b"), StandardCharsets.UTF_8));
            assertEquals(List.of(5L, 3L), List.of(store.add("n", 5), store.add("n", -2)));
            assertArrayEquals(
                    new byte[] {2}, store.compareSet("a", new byte[] {1}, new byte[] {2}));
            assertArrayEquals(new byte[] {2}, store.get("a"));
            assertEquals(List.of(true, false),
                    List.of(store.check(List.of("a")), store.check(List.of("a", "zz"))));
            assertEquals(List.of(true, false), List.of(store.delete("b"), store.delete("b")));
            assertEquals(List.of("a"), store.keys("a"));
            store.set("empty", new byte[0]);
            assertArrayEquals(new byte[0], store.get("empty"));
            raises(DdpException.Timeout.class, "absent",
                    () -> store.await(List.of("absent"), soon));
            raises(IllegalArgumentException.class, "keys", () -> store.check(List.of("a\0")));
            try (Store other = new Store("tcp://127.0.0.1:" + store.port())) {
                assertEquals(other.keys(null), store.keys(""));
            }
        }
    }

    @Test
    void addressesBeyondLoopbackNeedASecret() {
        String everywhere = "tcp://0.0.0.0:0";
        for (String secret : List.of("", "short")) {
            raises(DdpException.PermissionDenied.class, "16 bytes",
                    () -> new Store(everywhere, new StoreOptions().server(true).secret(secret)));
            raises(DdpException.PermissionDenied.class, "16 bytes",
                    ()
                            -> new Group(new GroupOptions()
                                                 .rank(0)
                                                 .worldSize(1)
                                                 .initMethod(everywhere)
                                                 .secret(secret)));
        }
        for (String secret : List.of("", "short")) {
            new Store(everywhere, new StoreOptions().server(true).secret(secret).insecure(true))
                    .close();
            new Group(new GroupOptions()
                              .rank(0)
                              .worldSize(1)
                              .initMethod(everywhere)
                              .secret(secret)
                              .insecure(true))
                    .close();
        }
        new Store(everywhere, new StoreOptions().server(true).secret("long enough, this is"))
                .close();
    }

    @Test
    void works() throws Exception {
        Work made = new Work(Duration.ofSeconds(20));
        List<Integer> seen = new ArrayList<>();
        Work after = made.then(() -> { seen.add(1); });
        assertFalse(after.isDone());
        raises(DdpException.Timeout.class, "", () -> after.await(Duration.ofMillis(5)));
        Thread finisher = new Thread(made::complete);
        finisher.start();
        after.await();
        finisher.join();
        assertTrue(after.isDone());
        assertEquals(List.of(1), seen);
        Work failed = new Work();
        failed.fail("no luck");
        raises(DdpException.CallbackFailed.class, "no luck", failed::await);
        raises(DdpException.InvalidState.class, "", failed::complete);
    }

    @Test
    void exceptionsOfContinuationsAreTheSameObjects() {
        IllegalStateException mine = new IllegalStateException("mine");
        IllegalStateException thrown = raises(IllegalStateException.class, "mine",
                () -> group.barrierAsync().then(() -> { throw mine; }).await());
        assertSame(mine, thrown);
        assertTrue(thrown.getSuppressed()[0] instanceof DdpException.CallbackFailed);
        IOException checked = new IOException("checked");
        DdpException wrapped =
                raises(DdpException.CallbackFailed.class, "java.io.IOException: checked",
                        () -> group.barrierAsync().then(() -> { throw checked; }).await());
        assertSame(checked, wrapped.getCause());
        StackOverflowError error = raises(StackOverflowError.class, "",
                ()
                        -> group.barrierAsync()
                                   .then(() -> { throw new StackOverflowError("deep"); })
                                   .await());
        assertEquals("deep", error.getMessage());
    }

    @Test
    void aWorkThatAHookReturnsBelongsToLibddp() {
        Context ctx = context();
        AtomicReference<Work> passed = new AtomicReference<>();
        AtomicReference<Bucket> lent = new AtomicReference<>();
        ctx.setHook((g, bucket) -> {
            lent.set(bucket);
            passed.set(g.allreduceAsync(bucket.buffer(), bucket.op()));
            return passed.get();
        });
        ctx.gradReady(0);
        ctx.gradReady(1);
        ctx.finalizeStep();
        raises(IllegalStateException.class, "work: it is closed", passed.get()::await);
        raises(IllegalStateException.class, "bucket: the step", lent.get()::index);
        ctx.setHook((g, bucket) -> passed.get());
        raises(IllegalStateException.class, "that is closed", () -> {
            ctx.gradReady(0);
            ctx.gradReady(1);
            ctx.finalizeStep();
        });
    }

    @Test
    void noForeignThreads() {
        Work work = group.barrierAsync();
        Callback callback = Callback.of(work.handle, () -> null);
        raises(DdpException.Unsupported.class, "ANY_THREAD",
                ()
                        -> ddp.ddp_work_then(
                                work.handle, callback, ddp.DDP_WORK_ANY_THREAD, new long[1]));
        work.await();
    }

    @Test
    void facts() {
        assertEquals(Integer.toString(ddp.DDP_VERSION_MAJOR), Ddp.version().split("\\.")[0]);
        assertTrue(Ddp.backendAvailable("shm"));
        assertFalse(Ddp.backendAvailable("nothing"));
        assertTrue(Environment.get().isEmpty());
        raises(IllegalStateException.class, "loaded already",
                () -> Ddp.library(java.nio.file.Path.of("x")));
        raises(DdpException.InvalidArgument.class, "", () -> Ddp.registerBackend(0));
    }
}
