import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkException;
import org.apache.spark.api.java.JavaSparkContext;
import org.libddp.Group;
import org.libddp.Op;
import org.libddp.spark.Barrier;

/** The results and failures of Barrier.run. Prints a line for each check that holds. */
final class Barriers {
    private Barriers() {}

    static FloatBuffer one(float value) {
        return ByteBuffer.allocateDirect(4)
                .order(ByteOrder.nativeOrder())
                .asFloatBuffer()
                .put(0, value);
    }

    /** rank, world size, sum of all rows */
    static String sum(Group group, Iterator<Integer> rows) {
        float own = 0;
        while (rows.hasNext()) {
            own += rows.next();
        }
        FloatBuffer all = one(own);
        group.allreduce(all, Op.SUM);
        return group.rank() + " of " + group.worldSize() + ": " + all.get(0);
    }

    static Integer failing(Group group, Iterator<Integer> rows) {
        group.barrier();
        if (group.rank() == 1) {
            throw new IllegalArgumentException("the sample 17 is bad");
        }
        while (true) {
            group.allreduce(one(1), Op.SUM);
        }
    }

    static void check(String what, Object found, Object expected) {
        if (!found.equals(expected)) {
            throw new AssertionError(what + ": " + found + " instead of " + expected);
        }
        System.out.println(what + ": met");
    }

    static List<String> sums(JavaSparkContext spark, int ranks) {
        return Barrier.run(
                spark.parallelize(IntStream.range(0, 20).boxed().toList(), ranks), Barriers::sum);
    }

    public static void main(String[] arguments) throws Exception {
        try (JavaSparkContext spark =
                        new JavaSparkContext(new SparkConf().setAppName("Barriers"))) {
            List<String> of3 = List.of("0 of 3: 190.0", "1 of 3: 190.0", "2 of 3: 190.0");
            check("results", sums(spark, 3), of3);
            try {
                Barrier.run(spark.parallelize(List.of(0, 1, 2), 3), Barriers::failing);
                throw new AssertionError("no failure");
            } catch (Barrier.RankFailed failed) {
                check("rank", failed.rank(), 1);
                check("cause",
                        failed.getMessage().startsWith(
                                "rank 1 of 3 failed: java.lang.IllegalArgumentException: the sample 17 is bad; "),
                        true);
                check("libddp's sentence",
                        failed.getMessage().matches(
                                "(?s).*; rank 0 of 3 failed: .*RankFailed: .*rank 1 .*"),
                        true);
                check("Spark's error", failed.getCause() instanceof SparkException, true);
            }
            List<Callable<List<String>>> jobs = new ArrayList<>();
            jobs.add(() -> sums(spark, 3));
            jobs.add(() -> sums(spark, 2));
            List<Future<List<String>>> results = Executors.newFixedThreadPool(2).invokeAll(jobs);
            check("the first of two jobs", results.get(0).get(), of3);
            check("the second of two jobs", results.get(1).get(),
                    List.of("0 of 2: 190.0", "1 of 2: 190.0"));
        }
        System.exit(0);
    }
}
