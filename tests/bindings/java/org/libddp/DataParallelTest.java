package org.libddp;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.libddp.Ranks.group;
import static org.libddp.Ranks.rank;
import static org.libddp.Ranks.world;
import static org.libddp.Support.raises;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;

/** Arrays on the heap. On several ranks, as {@link RanksTest}. */
@TestMethodOrder(MethodOrderer.MethodName.class)
class DataParallelTest {
    private static Map<String, Object> tree(float f, double d) {
        return Map.of("bias", new float[] {f, 2 * f}, "layers",
                List.of(Map.of("w", new double[][] {{d}, {d + 1, d + 2}}), new float[0]));
    }

    private static float[] bias(Map<String, Object> tree) {
        return (float[]) tree.get("bias");
    }

    private static double[][] weights(Map<String, Object> tree) {
        return (double[][]) ((Map<?, ?>) ((List<?>) tree.get("layers")).get(0)).get("w");
    }

    @Test
    void meansOfTrees() {
        Map<String, Object> parameters = tree(rank + 1, rank + 10);
        try (DataParallel parallel = new DataParallel(group, parameters, new ContextOptions())) {
            assertArrayEquals(new float[] {1, 2}, bias(parameters));
            assertArrayEquals(new double[] {11, 12}, weights(parameters)[1]);
            assertEquals(4, parallel.context().parameters().size());
            assertEquals("layers.0.w.1", parallel.context().parameters().get(2).name());
            for (int step = 0; step < 3; ++step) {
                Map<String, Object> gradients = tree(rank + step, rank);
                parallel.mean(gradients);
                float middle = (world - 1) / 2f;
                assertArrayEquals(
                        new float[] {middle + step, 2 * (middle + step)}, bias(gradients), 1e-6f);
                assertArrayEquals(
                        new double[] {middle + 1, middle + 2}, weights(gradients)[1], 1e-12);
                assertArrayEquals(new double[] {middle}, weights(gradients)[0], 1e-12);
            }
        }
    }

    /** The program's arrays are others: libddp would compare, average and hand over its copies, and say that all is well. */
    @Test
    void libddpHasFirstValuesOnly() {
        raises(IllegalStateException.class, "verifyInterval: libddp has the first values",
                () -> new DataParallel(group, tree(1, 1), new ContextOptions().verifyInterval(2)));
        try (DataParallel parallel = new DataParallel(group, tree(1, 1), new ContextOptions());
                Elastic job =
                        new Elastic(new ElasticOptions()
                                            .group(new GroupOptions().initMethod("file:///unused"))
                                            .maxWorld(1))) {
            Context context = parallel.context();
            raises(IllegalStateException.class, "averageParameters: libddp has the first values",
                    () -> context.averageParameters(null));
            raises(IllegalStateException.class, "join: libddp has the first values", context::join);
            raises(IllegalStateException.class, "noSync: ", context::noSync);
            raises(IllegalStateException.class, "Averager: libddp has the first values",
                    () -> new Averager(context, 1));
            raises(IllegalStateException.class, "addContext: libddp has the first values",
                    () -> job.addContext(context));
        }
    }

    @Test
    void wrongTreesAreNamed() {
        raises(IllegalArgumentException.class, "parameters: w.1 is of class java.lang.Integer",
                ()
                        -> new DataParallel(group, Map.of("w", List.of(new float[1], 3)),
                                new ContextOptions()));
        raises(IllegalArgumentException.class, "parameters: there is no array",
                () -> new DataParallel(group, List.of(), new ContextOptions()));
        try (DataParallel parallel = new DataParallel(group, tree(0, 0), new ContextOptions())) {
            Map<String, Object> gradients = new HashMap<>(tree(0, 0));
            gradients.put("more", new float[1]);
            raises(IllegalArgumentException.class, "gradients: more is not among",
                    () -> parallel.mean(gradients));
            gradients.remove("more");
            gradients.put("bias", new float[3]);
            raises(IllegalArgumentException.class,
                    "gradients: bias has 3 elements of type F32, the parameter 2",
                    () -> parallel.mean(gradients));
            gradients.put("bias", new double[2]);
            raises(IllegalArgumentException.class, "gradients: bias has 2 elements of type F64",
                    () -> parallel.mean(gradients));
            gradients.remove("bias");
            raises(IllegalArgumentException.class, "gradients: bias is missing",
                    () -> parallel.mean(gradients));
            gradients.put("bias", null);
            raises(IllegalArgumentException.class, "gradients: bias is null",
                    () -> parallel.mean(gradients));
            parallel.mean(tree(rank, rank)); // all the same, the next step is as any
        }
    }
}
