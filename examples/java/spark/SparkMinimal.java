import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;
import org.libddp.Context;
import org.libddp.Group;
import org.libddp.Parameter;
import org.libddp.spark.Barrier;

/** A distributed trainer in the tasks of Spark. It fits y = w0 + w1 x to rows that Spark reads. */
final class SparkMinimal {
    private SparkMinimal() {}

    static FloatBuffer floats(int count) {
        return ByteBuffer.allocateDirect(4 * count).order(ByteOrder.nativeOrder()).asFloatBuffer();
    }

    static List<Float> train(Group group, Iterator<Float> rows) {
        List<Float> samples = new ArrayList<>();
        rows.forEachRemaining(samples::add);
        FloatBuffer w = floats(2), grad = floats(2);
        try (Context context = new Context(group)) {
            Parameter param = context.register("w", w, grad);
            context.commit();
            for (int step = 0; step < 500; ++step) {
                float x = samples.get(step % samples.size());
                float wrong = w.get(0) + w.get(1) * x - (3 - 2 * x); // prediction minus truth
                grad.put(0, wrong).put(1, wrong * x);
                context.gradReady(param);
                context.finalizeStep();
                for (int i = 0; i < 2; ++i) w.put(i, w.get(i) - 0.5f * grad.get(i));
            }
        }
        return List.of(w.get(0), w.get(1));
    }

    public static void main(String[] arguments) {
        try (JavaSparkContext spark =
                        new JavaSparkContext(new SparkConf().setAppName("SparkMinimal"))) {
            List<Float> x = IntStream.range(0, 20).mapToObj(i -> i / 20f).toList();
            List<List<Float>> results = Barrier.run(spark.parallelize(x, 2), SparkMinimal::train);
            for (int rank = 0; rank < 2; ++rank) {
                System.out.printf("rank %d: y = %.3f %+.3f x%n", rank, results.get(rank).get(0),
                        results.get(rank).get(1));
            }
        }
    }
}
