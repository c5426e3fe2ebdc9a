import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import org.libddp.Context;
import org.libddp.DdpException;
import org.libddp.Group;
import org.libddp.GroupOptions;
import org.libddp.Op;
import org.libddp.Parameter;
import org.libddp.Store;
import org.libddp.StoreOptions;
import org.libddp.Work;

/**
 * A rank in Java that waits: tests/dist/interrupt/worker.c tells how it is called and what it
 * prints. Thread.interrupt, for which a line on standard input asks, ends the wait with a
 * DdpException; the thread stays interrupted.
 */
class InterruptWorker {
    private static final Duration TIMEOUT = Duration.ofSeconds(60);

    private static FloatBuffer floats() {
        return ByteBuffer.allocateDirect(400).order(ByteOrder.nativeOrder()).asFloatBuffer();
    }

    private static void tell(String word, DdpException error) {
        String name = error instanceof DdpException.Interrupted ? "INTERRUPTED"
                                                                : error.getClass().getSimpleName();
        System.out.printf(Locale.ROOT, "%s %.6f %s %d %s%n", word, System.nanoTime() / 1e9, name,
                error.rank(), error.getMessage());
    }

    private static void waiting(Runnable call) {
        System.out.println("waiting");
        try {
            call.run();
        } catch (DdpException error) {
            tell(Thread.interrupted() ? "interrupted" : "error", error);
            return;
        }
        throw new AssertionError("the call did not wait");
    }

    private static void useStore(String uri) {
        try (Store store = new Store(
                     uri, new StoreOptions().server(uri.startsWith("tcp:")).timeout(TIMEOUT))) {
            waiting(() -> store.get("nobody sets this"));
            store.set("key", "value");
            System.out.println(Arrays.equals(store.get("key"), "value".getBytes())
                            ? "the store works"
                            : "the store is broken");
        }
    }

    private static void sleepUntilBroken(Group group) throws InterruptedException {
        for (int i = 0; i < 3000; ++i) {
            try {
                group.check();
            } catch (DdpException error) {
                tell("error", error);
                return;
            }
            Thread.sleep(20);
        }
    }

    private static void finalizeStep(Group group, boolean sleeps) throws InterruptedException {
        try (Context context = new Context(group)) {
            Parameter w = context.register("w", floats(), floats());
            context.commit();
            if (sleeps) {
                sleepUntilBroken(group);
            } else {
                context.gradReady(w);
                waiting(context::finalizeStep);
            }
        }
    }

    private static void collective(Group group, String name) {
        FloatBuffer data = floats();
        if (name.equals("barrier")) {
            waiting(group::barrier);
        } else if (name.equals("allreduce")) {
            waiting(() -> group.allreduce(data, Op.SUM));
        } else {
            Work work = group.allreduceAsync(data, Op.SUM);
            if (name.equals("timed"))
                waiting(() -> work.await(TIMEOUT));
            else
                waiting(work::await);
        }
    }

    private static void interruptOnInput(Thread main) {
        Thread reader = new Thread(() -> {
            try {
                if (System.in.read() >= 0) main.interrupt();
            } catch (IOException error) {
                throw new AssertionError(error);
            }
        });
        reader.setDaemon(true);
        reader.start();
    }

    public static void main(String[] arguments) throws InterruptedException {
        String name = arguments[0];
        int rank = Integer.parseInt(arguments[1]), world = Integer.parseInt(arguments[2]);
        interruptOnInput(Thread.currentThread());
        if (name.equals("store")) {
            useStore(arguments[3]);
            return;
        }
        GroupOptions options =
                new GroupOptions().rank(rank).worldSize(world).initMethod(arguments[3]);
        options.backend(arguments[4]).timeout(TIMEOUT);
        if (name.equals("join")) {
            waiting(() -> new Group(options));
            return;
        }
        try (Group group = new Group(options)) {
            if (name.equals("finalize"))
                finalizeStep(group, rank == world - 1);
            else if (rank == world - 1)
                sleepUntilBroken(group);
            else
                collective(group, name);
        }
    }
}
