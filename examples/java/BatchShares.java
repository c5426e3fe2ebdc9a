import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.concurrent.locks.LockSupport;
import org.libddp.BatchShare;
import org.libddp.Context;
import org.libddp.ContextOptions;
import org.libddp.Group;
import org.libddp.Parameter;
import org.libddp.Reduction;

/**
 * Ranks of different speed train on one global batch. The last rank takes three times as long for a
 * sample, and soon gets a third of the samples of another one.
 *
 * <pre>ddprun -n 3 java -cp libddp.jar BatchShares.java [STEPS]</pre>
 *
 * <p>The model is that of Minimal.java. Any number of ranks, with any shares, trains the same w.
 */
class BatchShares {
    static final int SAMPLES = 84;

    static FloatBuffer memory() {
        return ByteBuffer.allocateDirect(8).order(ByteOrder.nativeOrder()).asFloatBuffer();
    }

    public static void main(String[] arguments) {
        int steps = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 60;
        FloatBuffer w = memory(), grad = memory();
        ContextOptions options = new ContextOptions().reduction(Reduction.WEIGHTED_MEAN);
        try (Group group = new Group(); Context context = new Context(group, options)) {
            int rank = group.rank(), world = group.worldSize();
            long nanos = world > 1 && rank == world - 1 ? 3_000_000 : 1_000_000; // for a sample
            Parameter param = context.register("w", w, grad);
            context.shareBatch(SAMPLES, 1, 0);
            context.commit();
            long before = 0, since = 0;
            int sinceStep = 0;
            for (int step = 0; step < steps; ++step) {
                BatchShare mine = context.batchShare();
                if (mine.size() != before || step == steps - 1) {
                    long now = System.nanoTime();
                    if (step > 0) {
                        System.out.printf("rank %d: %d of %d samples, %.1f ms a step%n", rank,
                                before, SAMPLES, (now - since) / 1e6 / (step - sinceStep));
                    }
                    before = mine.size();
                    since = now;
                    sinceStep = step;
                }
                context.setWeight(mine.size()); // before each step
                context.stepBegin();
                LockSupport.parkNanos(nanos * mine.size());
                float first = 0, second = 0;
                for (long i = mine.begin(); i < mine.end(); ++i) {
                    float x = (7 * step + i) % 10 / 10f;
                    float wrong = w.get(0) + w.get(1) * x - (3 - 2 * x);
                    first += wrong / mine.size();
                    second += wrong * x / mine.size();
                }
                grad.put(0, first).put(1, second);
                context.gradReady(param);
                context.finalizeStep(); // grad is now the mean of the global batch
                for (int i = 0; i < 2; ++i) w.put(i, w.get(i) - 0.5f * grad.get(i));
            }
            System.out.printf("rank %d: y = %.4f %+.4f x%n", rank, w.get(0), w.get(1));
        }
    }
}
