package org.libddp;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.libddp.Support.array;
import static org.libddp.Support.full;

import java.nio.FloatBuffer;
import java.time.Duration;

/** For tests on several ranks: the group of the process, what each rank gives, and a model to
 * train. */
final class Ranks {
    static final int SIZE = 1000;

    /** One for all tests, left when the process ends. */
    static final Group group = new Group(new GroupOptions().timeout(Duration.ofSeconds(30)));
    static final int rank = group.rank();
    static final int world = group.worldSize();

    private Ranks() {}

    /** The numbers that a rank gives: whole ones, which add without rounding. */
    static float value(int of, int i) {
        return (i * 7 + of * 13) % 32;
    }

    static FloatBuffer mine(int size) {
        FloatBuffer made = full(size, 0);
        for (int i = 0; i < size; ++i) made.put(i, value(rank, i));
        return made;
    }

    static float[] sum() {
        float[] sum = new float[SIZE];
        for (int of = 0; of < world; ++of) {
            for (int i = 0; i < SIZE; ++i) sum[i] += value(of, i);
        }
        return sum;
    }

    static float[] scaled(float[] values, float factor) {
        float[] made = values.clone();
        for (int i = 0; i < made.length; ++i) made[i] *= factor;
        return made;
    }

    static float[] mean() {
        return scaled(sum(), 1f / world);
    }

    static void assertClose(float[] expected, FloatBuffer found) {
        float[] values = array(found);
        assertEquals(expected.length, values.length);
        for (int i = 0; i < values.length; ++i)
            assertEquals(expected[i], values[i], 1e-6 * Math.abs(expected[i]), "element " + i);
    }

    /** Two parameters with gradients of their own, and two with views. */
    static Context make(Group on, ContextOptions options) {
        Context ctx = new Context(on, options.bucketCap(2000).firstBucketCap(2000));
        for (int i = 0; i < 4; ++i)
            ctx.register("p" + i, full(SIZE, rank), i % 2 == 1 ? full(SIZE, 0) : null, SIZE);
        ctx.commit();
        return ctx;
    }

    static FloatBuffer gradient(Parameter parameter) {
        return (parameter.grad() == null ? parameter.view() : parameter.grad()).floats();
    }

    static void announce(Parameter parameter) {
        if (parameter.grad() == null) {
            parameter.put(mine(SIZE));
        } else {
            parameter.grad().floats().put(mine(SIZE));
            parameter.ready();
        }
    }

    static void train(Context ctx, int steps, float[] expected) {
        for (int step = 0; step < steps; ++step) {
            ctx.stepBegin();
            ctx.parameters().forEach(Ranks::announce);
            ctx.finalizeStep();
            for (Parameter each : ctx.parameters()) assertClose(expected, gradient(each));
        }
    }
}
