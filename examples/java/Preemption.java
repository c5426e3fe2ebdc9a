import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.concurrent.locks.LockSupport;
import org.libddp.Context;
import org.libddp.ContextOptions;
import org.libddp.Group;
import org.libddp.Parameter;
import org.libddp.Votes;

/**
 * A trainer that a cluster may take off its machines. A signal to ddprun makes all ranks write a
 * checkpoint, or end, after the same step. The next start goes on from there, with the numbers of a
 * training that nobody has interrupted.
 *
 * <pre>ddprun -n 2 --checkpoint-on SIGUSR1 --stop-on SIGTERM java -cp libddp.jar Preemption.java FILE
 * [STEPS]</pre>
 *
 * <p>The model is that of Minimal.java.
 */
class Preemption {
    static ByteBuffer memory(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    /** A process that is killed meanwhile leaves the checkpoint before. */
    static void save(Path path, long step, FloatBuffer w) throws IOException {
        Path other = Path.of(path + ".new");
        try (DataOutputStream out = new DataOutputStream(Files.newOutputStream(other))) {
            out.writeLong(step);
            for (int i = 0; i < 2; ++i) out.writeFloat(w.get(i));
        }
        Files.move(other, path, StandardCopyOption.REPLACE_EXISTING);
    }

    public static void main(String[] arguments) throws IOException {
        Path path = Path.of(arguments[0]);
        long steps = arguments.length > 1 ? Long.parseLong(arguments[1]) : 500;
        FloatBuffer w = memory(8).asFloatBuffer(), grad = memory(8).asFloatBuffer();
        LongBuffer first = memory(8).asLongBuffer();
        try (Group group = new Group();
                Context context = new Context(group, new ContextOptions().votes(true))) {
            if (group.rank() == 0 && Files.exists(path)) {
                try (DataInputStream in = new DataInputStream(Files.newInputStream(path))) {
                    first.put(0, in.readLong());
                    for (int i = 0; i < 2; ++i) w.put(i, in.readFloat());
                }
            }
            group.broadcast(first, 0);
            long step = first.get(0);
            Parameter param = context.register("w", w, grad);
            context.commit(); // every rank goes on with rank 0's w
            System.out.println("rank " + group.rank() + ": from step " + step);
            boolean stopped = false;
            while (step < steps && !stopped) {
                float x = (7 * step + group.rank()) % 10 / 10f;
                float wrong = w.get(0) + w.get(1) * x - (3 - 2 * x);
                LockSupport.parkNanos(2_000_000); // a larger model
                grad.put(0, wrong).put(1, wrong * x);
                context.gradReady(param);
                context.finalizeStep();
                for (int i = 0; i < 2; ++i) w.put(i, w.get(i) - 0.02f * grad.get(i));
                ++step;
                Votes votes = context.votes(); // the same on every rank
                stopped = votes.any(Votes.STOP);
                if (votes.any(Votes.CHECKPOINT | Votes.STOP)) {
                    if (group.rank() == 0) save(path, step, w);
                    System.out.println("rank " + group.rank() + ": checkpoint after step " + step);
                }
            }
            String how = step < steps ? "stopped" : "done";
            System.out.println("rank " + group.rank() + ": " + how + " after step " + step
                    + ", y = " + w.get(0) + " + " + w.get(1) + " x");
        }
    }
}
