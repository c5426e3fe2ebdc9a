import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.libddp.Context;
import org.libddp.ContextOptions;
import org.libddp.DdpException;
import org.libddp.Group;
import org.libddp.Op;
import org.libddp.Optimizer;
import org.libddp.Parameter;
import org.libddp.Piece;
import org.libddp.ShardArray;

/**
 * ../c/sharded.c in Java. The work and the state of AdamW are divided by the number of ranks, and
 * any number of ranks goes on where others have stopped.
 *
 * <pre>ddprun -n 4 java -cp libddp.jar:CLASSES Sharded DIGITS FOLDER 1   one epoch, which is saved
 *ddprun -n 3 java -cp libddp.jar:CLASSES Sharded DIGITS FOLDER 2   and the second one</pre>
 */
final class Sharded implements AutoCloseable {
    private static final int BATCH = 48;
    private static final int SEED = 1;

    private final Mlp net;
    private final FloatBuffer[] data = new FloatBuffer[2 * Mlp.LAYERS];
    private final FloatBuffer[] gradients = new FloatBuffer[data.length];
    private final Group group;
    private final Context context;
    private final Optimizer optimizer;
    private final int norm; // of all gradients

    /** Gradients live in the buckets. Biases do not decay. */
    Sharded(Group group) {
        this.group = group;
        net = new Mlp(BATCH / group.worldSize(), SEED);
        context = new Context(group, new ContextOptions().shard(true));
        for (int i = 0; i < data.length; ++i) {
            data[i] = ByteBuffer.allocateDirect(4 * net.values[i].length)
                              .order(ByteOrder.nativeOrder())
                              .asFloatBuffer()
                              .put(net.values[i])
                              .flip();
            context.register(Mlp.name(i), data[i], Mlp.shape(i));
        }
        norm = context.trackGradNorm(2);
        context.commit();
        optimizer = new Optimizer(context, "adamw", "weight_decay=0.1");
        for (Parameter each : context.parameters()) {
            gradients[each.index()] = each.view().floats();
            if (each.shape().length == 1) optimizer.set(each, "weight_decay", 0);
        }
    }

    private void announce(int tensor) {
        gradients[tensor].put(0, net.gradients[tensor]);
        context.gradReady(tensor);
    }

    private void takeValues() {
        for (Parameter each : context.parameters()) {
            context.awaitValue(each);
            data[each.index()].get(0, net.values[each.index()]);
        }
    }

    /** One pass over the digits. This rank's part of the loss is in net.loss. */
    private void epoch(Idx set, int number) {
        int[] order = Mnist.shuffled(set.count(), SEED, number);
        int part = BATCH / group.worldSize();
        net.loss = 0;
        optimizer.set("lr", 1e-3 / (number + 1));
        for (int batch = 0; batch + BATCH <= set.count(); batch += BATCH) {
            int first = batch + group.rank() * part;
            takeValues();
            net.forward(set, order, first, part);
            net.backward(set, order, first, part, this::announce);
            context.finalizeStep();
            context.clipGradNorm(norm, 1);
            optimizer.step();
            context.publish(); // the new values travel
        }
        takeValues();
    }

    /** {@return the values and the state that this rank owns} */
    private List<ShardArray> arrays() {
        List<ShardArray> all = new ArrayList<>(optimizer.state());
        for (Piece each : context.pieces()) all.add(ShardArray.of("value", each, each.value()));
        return all;
    }

    /** {@return how many epochs others have trained} */
    private int goOn(Path folder) {
        try {
            return Integer.parseInt(context.loadShards(folder, arrays()));
        } catch (DdpException.NotFound e) {
            return 0; // the first ones
        }
    }

    private void train(Idx digits, Path folder, int epochs) {
        int seen = digits.count() / BATCH * BATCH;
        for (int number = goOn(folder); number < epochs; ++number) {
            epoch(digits, number);
            FloatBuffer loss = ByteBuffer.allocateDirect(4)
                                       .order(ByteOrder.nativeOrder())
                                       .asFloatBuffer()
                                       .put(0, (float) (net.loss / seen));
            group.allreduce(loss, Op.SUM);
            if (group.rank() == 0)
                System.out.printf(Locale.ROOT, "epoch %d  loss %.6f%n", number + 1, loss.get(0));
            context.saveShards(folder, arrays(), Integer.toString(number + 1));
        }
    }

    private double accuracy(Idx set) {
        takeValues();
        int[] order = new int[set.count()];
        for (int i = 0; i < order.length; ++i) order[i] = i;
        net.correct = 0;
        int most = BATCH / group.worldSize();
        for (int first = 0; first < order.length; first += most)
            net.forward(set, order, first, Math.min(most, order.length - first));
        return 100 * net.correct / order.length;
    }

    @Override
    public void close() {
        optimizer.close();
        context.close();
    }

    public static void main(String[] arguments) throws IOException {
        if (arguments.length != 3) {
            System.err.println("usage: Sharded DIGITS FOLDER EPOCHS");
            System.exit(2);
        }
        Path digits = Path.of(arguments[0]);
        try (Group group = new Group(); Sharded trainer = new Sharded(group)) {
            trainer.train(Idx.load(digits, "train"), Path.of(arguments[1]),
                    Integer.parseInt(arguments[2]));
            double accuracy = trainer.accuracy(Idx.load(digits, "t10k"));
            if (group.rank() == 0)
                System.out.printf(Locale.ROOT, "test accuracy %.2f %%%n", accuracy);
        }
    }
}
