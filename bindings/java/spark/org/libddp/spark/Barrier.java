package org.libddp.spark;

import java.io.Serializable;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.BarrierTaskContext;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkException;
import org.apache.spark.api.java.JavaRDD;
import org.libddp.DdpException;
import org.libddp.Group;
import org.libddp.GroupOptions;
import org.libddp.Store;
import org.libddp.StoreOptions;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction1;

/** Ranks in the tasks of a barrier stage of Spark: one for each partition of an RDD. */
public final class Barrier {
    private static final String REPORTS = "ddp/spark/failed/";
    private static final long REPORT_MS = 2000; // how long the other ranks may say how they failed

    private Barrier() {}

    /**
     * The program of a rank.
     *
     * @param <T> the type of rows
     * @param <R> the type of results
     */
    @FunctionalInterface
    public interface Program<T, R> extends Serializable {
        /**
         * Runs in a thread of an executor.
         *
         * @param group the ranks of the job; closed when this returns
         * @param rows the partition of this rank
         * @return the result of this rank
         * @throws Exception ends the job
         */
        R run(Group group, Iterator<T> rows) throws Exception;
    }

    /** A rank failed. The message has the failures of all ranks, the cause first. */
    public static final class RankFailed extends RuntimeException {
        private static final long serialVersionUID = 1;
        private final int rank;

        RankFailed(String message, int rank, Throwable cause) {
            super(message, cause);
            this.rank = rank;
        }

        /**
         * Returns the rank that was the cause.
         *
         * @return -1 if it is not known
         */
        public int rank() {
            return rank;
        }
    }

    /**
     * Runs a program on a rank for each partition, in the order of partitions. Blocks. Spark must
     * have a free slot for each partition at once. A rank that fails ends the collectives of the
     * others with an error. The store is in the driver, at spark.driver.host.
     *
     * @param data the rows; {@code repartition} sets the number of ranks
     * @param program what each rank does
     * @param <T> the type of rows
     * @param <R> the type of results, which Spark must be able to serialize
     * @return the results, in the order of ranks
     * @throws RankFailed if a rank fails
     */
    public static <T, R> List<R> run(JavaRDD<T> data, Program<T, R> program) {
        byte[] bytes = new byte[32];
        new SecureRandom().nextBytes(bytes);
        String secret = HexFormat.of().formatHex(bytes);
        SparkConf conf = data.context().getConf();
        String host = conf.get("spark.driver.host");
        String bound = "tcp://" + conf.get("spark.driver.bindAddress", host) + ":0";
        ClassTag<R> tag = ClassTag$.MODULE$.apply(Object.class);
        try (Store store = new Store(bound, new StoreOptions().server(true).secret(secret))) {
            Task<T, R> task = new Task<>("tcp://" + host + ":" + store.port(), secret, program);
            try {
                return JavaRDD.fromRDD(data.rdd().barrier().mapPartitions(task, false, tag), tag)
                        .collect();
            } catch (Exception error) { // SparkException, which Scala does not declare
                if (!(error instanceof SparkException)) {
                    throw error;
                }
                throw failed(store, data.getNumPartitions(), error);
            }
        }
    }

    private static RankFailed failed(Store store, int ranks, Exception error) {
        long deadline = System.nanoTime() + REPORT_MS * 1_000_000;
        while (store.keys(REPORTS).size() < ranks && System.nanoTime() < deadline) {
            try {
                Thread.sleep(50);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                break;
            }
        }
        List<String[]> reports = new ArrayList<>();
        for (String key : store.keys(REPORTS)) {
            reports.add(new String(store.get(key), java.nio.charset.StandardCharsets.UTF_8)
                                .split("\n", 2));
        }
        // a rank that libddp has told of another one is not the cause
        reports.sort(Comparator.comparing(report -> !report[0].startsWith("own ")));
        if (reports.isEmpty()) {
            return new RankFailed(
                    "the job failed before a rank did: " + error.getMessage(), -1, error);
        }
        String text = String.join("; ", reports.stream().map(report -> report[1]).toList());
        return new RankFailed(text, Integer.parseInt(reports.get(0)[0].split(" ")[1]), error);
    }

    private static final class Task<T, R>
            extends AbstractFunction1<scala.collection.Iterator<T>, scala.collection.Iterator<R>>
            implements Serializable {
        private static final long serialVersionUID = 1;
        private final String uri;
        private final String secret;
        private final Program<T, R> program;

        Task(String uri, String secret, Program<T, R> program) {
            this.uri = uri;
            this.secret = secret;
            this.program = program;
        }

        @Override
        public scala.collection.Iterator<R> apply(scala.collection.Iterator<T> rows) {
            BarrierTaskContext context = BarrierTaskContext.get();
            int rank = context.partitionId();
            int ranks = context.getTaskInfos().length;
            try (Store store = new Store(uri, new StoreOptions().secret(secret))) {
                try (Group group = new Group(
                             new GroupOptions().rank(rank).worldSize(ranks).store(store).secret(
                                     secret))) {
                    R result = program.run(group, CollectionConverters.asJava(rows));
                    List<R> results = new ArrayList<>();
                    results.add(result);
                    return CollectionConverters.asScala(results.iterator());
                } catch (Exception error) {
                    int named = error instanceof DdpException ? ((DdpException) error).rank() : -1;
                    boolean other = named >= 0 && named != rank;
                    String text = "rank " + rank + " of " + ranks + " failed: " + error;
                    store.set(REPORTS + rank,
                            (other ? "other " + named : "own " + rank) + "\n" + text);
                    throw new IllegalStateException(text, error);
                }
            }
        }
    }
}
