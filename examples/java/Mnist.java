import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import org.libddp.Averager;
import org.libddp.Context;
import org.libddp.Group;
import org.libddp.Mark;
import org.libddp.Op;
import org.libddp.Parameter;

/**
 * Trains a multi-layer perceptron (Mlp.java) on handwritten digits with as many processes as a
 * launcher starts.
 *
 * <pre>
 *     javac -cp libddp.jar -d classes *.java
 *     java -cp libddp.jar:classes Mnist                      one process
 *     ddprun -n 4 java -cp libddp.jar:classes Mnist          four processes, the same training in a fraction of the time
 * </pre>
 *
 * <p>What libddp does here: {@link #share} registers the parameters, {@link #announce} says that a
 * gradient is complete, and {@link #epoch} calls stepBegin before the forward and finalizeStep
 * after the backward pass. All else is the same as without it. The model computes with arrays, as
 * Java does best; they are copied to and from the direct buffers that libddp sees.
 *
 * <p>It is the trainer of ../c/mnist.c: the same model, batches and options. The trainers of all
 * languages may be ranks of one job.
 */
final class Mnist {
    private final Settings settings;
    private final Mlp net;
    private final int rank;
    private final int world;
    /** Null where it trains alone, without libddp. */
    private Context context;
    private Averager averager;
    private final FloatBuffer[] data = new FloatBuffer[2 * Mlp.LAYERS];
    /** In libddp's buckets, or the model's own. */
    private final FloatBuffer[] gradients = new FloatBuffer[2 * Mlp.LAYERS];
    private long generation = -1;

    Mnist(Settings settings, Group group) {
        this.settings = settings;
        rank = group == null ? 0 : group.rank();
        world = group == null ? 1 : group.worldSize();
        // Every rank draws other weights, on purpose: commit replaces them with those of rank 0.
        net = new Mlp(settings.batch / world, settings.seed + rank);
        if (group != null) share(group);
    }

    private static ByteBuffer direct(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    /** Hands the model to libddp, which makes every rank's weights those of rank 0. */
    private void share(Group group) {
        context = new Context(group);
        for (int tensor = 0; tensor < data.length; ++tensor) {
            int bytes = 4 * net.values[tensor].length;
            data[tensor] = direct(bytes).asFloatBuffer().put(net.values[tensor]).flip();
            if (!settings.view) gradients[tensor] = direct(bytes).asFloatBuffer();
            context.register(Mlp.name(tensor), data[tensor], gradients[tensor], Mlp.shape(tensor));
        }
        context.useHook(settings.hook, settings.hookOptions);
        context.commit();
        takeWeights();
        if (settings.averageEvery > 0) averager = new Averager(context, settings.averageEvery);
    }

    private void takeWeights() {
        for (int tensor = 0; tensor < data.length; ++tensor)
            data[tensor].get(0, net.values[tensor]);
    }

    /** Starts a step, and finds the places of the gradients in the buckets when those have moved.
     */
    private void beginStep() {
        context.stepBegin();
        if (!settings.view || generation == context.layoutGeneration()) return;
        for (Parameter each : context.parameters()) gradients[each.index()] = each.view().floats();
        generation = context.layoutGeneration();
    }

    /** Called as soon as a gradient is complete: its bucket travels while the next layer is still
     * computed. */
    private void announce(int tensor) {
        gradients[tensor].put(0, net.gradients[tensor]);
        context.gradReady(tensor);
    }

    /** Models that are trained apart are averaged where libddp sees them. */
    private void average() {
        for (int tensor = 0; tensor < data.length; ++tensor)
            data[tensor].put(0, net.values[tensor]);
        averager.step();
        takeWeights();
    }

    /** An order of the digits, the same on every rank (Fisher and Yates). */
    static int[] shuffled(int count, long seed, int epoch) {
        int[] order = new int[count];
        for (int i = 0; i < count; ++i) order[i] = i;
        long state = seed * 1000003 + epoch;
        for (int i = count - 1; i > 0; --i) {
            state += Mlp.GAMMA;
            int j = (int) Long.remainderUnsigned(Mlp.mix(state), i + 1);
            int moved = order[i];
            order[i] = order[j];
            order[j] = moved;
        }
        return order;
    }

    /** One pass over the digits. This rank's part of the score is in net.loss and net.correct. */
    void epoch(Idx set, int number) {
        int[] order = shuffled(set.count(), settings.seed, number);
        int part = settings.batch / world;
        net.loss = net.correct = 0;
        for (int batch = 0; batch + settings.batch <= set.count(); batch += settings.batch) {
            int first = batch + rank * part;
            if (context != null) beginStep();
            net.forward(set, order, first, part);
            if (context != null) {
                net.backward(set, order, first, part, this::announce);
                context.finalizeStep();
                for (int tensor = 0; tensor < gradients.length; ++tensor)
                    gradients[tensor].get(0, net.gradients[tensor]);
            } else {
                net.backward(set, order, first, part, tensor -> {});
            }
            net.update(settings.rate, settings.momentum);
            if (averager != null) average();
        }
    }

    double accuracy(Idx set) {
        int[] order = new int[set.count()];
        for (int i = 0; i < order.length; ++i) order[i] = i;
        net.correct = 0;
        int most = settings.batch / world;
        for (int first = 0; first < order.length; first += most)
            net.forward(set, order, first, Math.min(most, order.length - first));
        return 100 * net.correct / order.length;
    }

    private static void say(String form, Object... values) {
        System.out.printf(Locale.ROOT, form + "%n", values);
    }

    /** Every rank trains the global batches alone and compares. Whether no rank saw more than the
     * bound of ../c/compare.c. */
    private boolean compareWithLocal(Group group, Idx set) {
        Mnist local = new Mnist(settings, null);
        try (Mark mark = new Mark("train alone")) { // in a timeline: ddprun --trace
            for (int number = 0; number < settings.epochs; ++number) local.epoch(set, number);
        }
        double most = 0;
        for (int tensor = 0; tensor < net.values.length; ++tensor) {
            for (int i = 0; i < net.values[tensor].length; ++i) {
                double apart =
                        Math.abs((double) net.values[tensor][i] - local.net.values[tensor][i]);
                most = Double.isNaN(apart) ? Double.POSITIVE_INFINITY : Math.max(most, apart);
            }
        }
        // Two numbers, as the ranks of the other languages send; theirs is the relative difference,
        // which is not computed here.
        DoubleBuffer worst = direct(16).asDoubleBuffer().put(0, most);
        group.allreduce(worst, Op.MAX);
        int steps = settings.epochs * (set.count() / settings.batch);
        double bound = steps * (double) settings.rate / (1 - settings.momentum) * settings.batch
                * Math.ulp(1f) * 0.1;
        boolean good = worst.get(0) <= bound;
        if (rank == 0) {
            say("against one process, any weight on any rank after %d steps: difference %.3g",
                    steps, worst.get(0));
            say("bound %.3g (rounding of steps * lr / (1 - momentum) * batch * 0.1, see compare.c): %s",
                    bound, good ? "met" : "EXCEEDED");
        }
        return good;
    }

    /** The final weights, one tensor after another. */
    private void save(Path file) throws IOException {
        int count = 0;
        for (float[] each : net.values) count += each.length;
        ByteBuffer bytes = ByteBuffer.allocate(4 * count).order(ByteOrder.nativeOrder());
        for (float[] each : net.values) {
            for (float value : each) bytes.putFloat(value);
        }
        Files.write(file, bytes.array());
    }

    public static void main(String[] arguments) throws IOException {
        Settings settings = new Settings(arguments);
        Idx train = Idx.load(settings.data, "train");
        try (Group group = new Group()) {
            if (settings.batch % group.worldSize() != 0 || settings.batch > train.count()) {
                throw new IllegalArgumentException("--batch " + settings.batch
                        + " must be a multiple of the " + group.worldSize()
                        + " ranks, and at most the " + train.count() + " digits");
            }
            Mnist trainer = new Mnist(settings, group);
            int seen = train.count() / settings.batch * settings.batch;
            for (int number = 0; number < settings.epochs; ++number) {
                long start = System.nanoTime();
                trainer.epoch(train, number);
                DoubleBuffer total = direct(16)
                                             .asDoubleBuffer()
                                             .put(0, trainer.net.loss)
                                             .put(1, trainer.net.correct);
                group.allreduce(total, Op.SUM);
                double seconds = 1e-9 * (System.nanoTime() - start);
                if (group.rank() > 0) continue;
                say("epoch %2d  loss %.4f  train accuracy %5.2f %%  %8.0f images/s", number + 1,
                        total.get(0) / seen, 100 * total.get(1) / seen, seen / seconds);
            }
            if (group.rank() == 0)
                say("test accuracy %.2f %%", trainer.accuracy(Idx.load(settings.data, "t10k")));
            if (group.rank() == 0 && settings.save != null) trainer.save(settings.save);
            boolean good = !settings.compareLocal || trainer.compareWithLocal(group, train);
            trainer.context.close();
            if (!good) System.exit(1);
        }
    }
}
