import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import org.libddp.Context;
import org.libddp.Group;
import org.libddp.Parameter;

/**
 * A whole distributed trainer. It fits y = w0 + w1 x to samples; each rank has its own.
 *
 * <pre>ddprun -n 2 java -cp libddp.jar Minimal.java       every rank ends with the same w, trained
 * on both ranks' samples</pre>
 */
class Minimal {
    static FloatBuffer floats(int count) {
        return ByteBuffer.allocateDirect(4 * count).order(ByteOrder.nativeOrder()).asFloatBuffer();
    }

    public static void main(String[] arguments) {
        FloatBuffer w = floats(2), grad = floats(2);
        // rank and world size from the launcher
        try (Group group = new Group(); Context context = new Context(group)) {
            Parameter param = context.register("w", w, grad);
            context.commit(); // every rank starts from rank 0's w
            for (int step = 0; step < 500; ++step) {
                float x = (7 * step + group.rank()) % 10 / 10f; // a sample of this rank's own
                float wrong = w.get(0) + w.get(1) * x - (3 - 2 * x); // prediction minus truth
                grad.put(0, wrong).put(1, wrong * x);
                context.gradReady(param); // starts the averaging over ranks
                context.finalizeStep(); // grad is now the mean
                for (int i = 0; i < 2; ++i) w.put(i, w.get(i) - 0.5f * grad.get(i));
            }
            System.out.printf("rank %d: y = %.3f %+.3f x%n", group.rank(), w.get(0), w.get(1));
        }
    }
}
