import java.util.function.IntConsumer;

/**
 * A multi-layer perceptron 784-256-128-10 with its gradients written by hand; the same as
 * ../c/mlp.c, with the same order of additions, and from the same seed the same weights. It knows
 * nothing of libddp.
 */
final class Mlp {
    static final int[] WIDTHS = {784, 256, 128, 10};
    static final int LAYERS = WIDTHS.length - 1;
    /** Where ReLU's kink is rounded off; ../c/mlp.c says why. */
    private static final float KNEE = 0.5f;
    /** Rows of a weight gradient that are summed together stay in a first-level cache. */
    private static final int ROW_BLOCK = 32;

    /** Weight (inputs x outputs) and bias of each layer in forward order. */
    final float[][] values = new float[2 * LAYERS][];
    final float[][] gradients = new float[2 * LAYERS][];
    private final float[][] velocities = new float[2 * LAYERS][];
    /** The output of each layer for each row of the batch; for the last layer: probabilities. */
    private final float[][] outputs = new float[LAYERS][];
    private final float[][] deltas = new float[LAYERS][];
    private long state;

    /** The score of a batch: sum of the cross entropy, and how many digits were recognised. */
    double loss;
    double correct;

    Mlp(int maxBatch, long seed) {
        state = seed;
        for (int layer = 0; layer < LAYERS; ++layer) {
            int in = WIDTHS[layer], out = WIDTHS[layer + 1];
            values[2 * layer] = uniform(in * out, (float) Math.sqrt(6f / in)); // He et al. 2015
            values[2 * layer + 1] = new float[out];
            outputs[layer] = new float[maxBatch * out];
            deltas[layer] = new float[maxBatch * out];
        }
        for (int tensor = 0; tensor < values.length; ++tensor) {
            gradients[tensor] = new float[values[tensor].length];
            velocities[tensor] = new float[values[tensor].length];
        }
    }

    static String name(int tensor) {
        return "layer" + tensor / 2 + (tensor % 2 == 0 ? ".weight" : ".bias");
    }

    static long[] shape(int tensor) {
        int in = WIDTHS[tensor / 2], out = WIDTHS[tensor / 2 + 1];
        return tensor % 2 == 0 ? new long[] {in, out} : new long[] {out};
    }

    /** The number after {@code state} of the generator in ../c/random.h (splitmix64). */
    static long mix(long state) {
        long z = state;
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }

    static final long GAMMA = 0x9e3779b97f4a7c15L;

    private float[] uniform(int count, float limit) {
        float[] made = new float[count];
        for (int i = 0; i < count; ++i) {
            state += GAMMA;
            made[i] = limit * (2f * ((mix(state) >>> 40) / 16777216f) - 1f);
        }
        return made;
    }

    /** y[at ...] += a * x[from ...] */
    private static void addScaled(float[] y, int at, float a, float[] x, int from, int count) {
        for (int i = 0; i < count; ++i) y[at + i] += a * x[from + i];
    }

    /** Eight running sums, as in ../c/mlp.c. */
    private static float dot(float[] a, int from, float[] b, int at, int count) {
        float s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
        int i = 0;
        for (; i + 8 <= count; i += 8) {
            s0 += a[from + i] * b[at + i];
            s1 += a[from + i + 1] * b[at + i + 1];
            s2 += a[from + i + 2] * b[at + i + 2];
            s3 += a[from + i + 3] * b[at + i + 3];
            s4 += a[from + i + 4] * b[at + i + 4];
            s5 += a[from + i + 5] * b[at + i + 5];
            s6 += a[from + i + 6] * b[at + i + 6];
            s7 += a[from + i + 7] * b[at + i + 7];
        }
        float sum = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7));
        for (; i < count; ++i) sum += a[from + i] * b[at + i];
        return sum;
    }

    private static float rectify(float x) {
        float bent = Math.min(x, KNEE);
        return x > 0 ? bent * bent / (2 * KNEE) + (x - bent) : 0;
    }

    /** The derivative of rectify, from its result. */
    private static float rectifySlope(float y) {
        return y < 0.5f * KNEE ? (float) Math.sqrt(y * (2 / KNEE)) : 1;
    }

    // The input of a layer for one row of the batch: the image, or the layer before.

    private float[] input(Idx set, int layer) {
        return layer == 0 ? set.images : outputs[layer - 1];
    }

    private static int inputAt(int[] rows, int first, int layer, int row) {
        return WIDTHS[layer] * (layer == 0 ? rows[first + row] : row);
    }

    /** Digits rows[first ...] of the set; adds to loss and correct. */
    void forward(Idx set, int[] rows, int first, int count) {
        for (int layer = 0; layer < LAYERS; ++layer) {
            for (int row = 0; row < count; ++row) {
                forwardRow(layer, input(set, layer), inputAt(rows, first, layer, row), row);
                if (layer == LAYERS - 1)
                    softmax(row * WIDTHS[LAYERS], set.labels[rows[first + row]]);
            }
        }
    }

    private void forwardRow(int layer, float[] input, int from, int row) {
        int in = WIDTHS[layer], out = WIDTHS[layer + 1], at = row * out;
        float[] output = outputs[layer], weight = values[2 * layer];
        System.arraycopy(values[2 * layer + 1], 0, output, at, out);
        for (int k = 0; k < in; ++k) {
            if (input[from + k] != 0) addScaled(output, at, input[from + k], weight, k * out, out);
        }
        for (int o = at; layer < LAYERS - 1 && o < at + out; ++o) output[o] = rectify(output[o]);
    }

    /** Turns the last layer's sums into probabilities, and adds what they say about the true class.
     */
    private void softmax(int at, int label) {
        float[] row = outputs[LAYERS - 1];
        int classes = WIDTHS[LAYERS], best = 0;
        for (int c = 1; c < classes; ++c) best = row[at + c] > row[at + best] ? c : best;
        float top = row[at + best]; // subtracted so that no exponential overflows
        float logit = row[at + label] - top;
        float sum = 0;
        for (int c = at; c < at + classes; ++c) sum += row[c] = (float) Math.exp(row[c] - top);
        for (int c = at; c < at + classes; ++c) row[c] /= sum;
        loss += (float) Math.log(sum) - logit;
        correct += best == label ? 1 : 0;
    }

    /** Gradients of the mean loss, the last layer's first. ready is given each tensor as soon as
     * its gradient is complete. */
    void backward(Idx set, int[] rows, int first, int count, IntConsumer ready) {
        lossDelta(set, rows, first, count);
        for (int layer = LAYERS - 1; layer >= 0; --layer) {
            biasGradient(layer, count);
            ready.accept(2 * layer + 1);
            weightGradient(set, rows, first, count, layer);
            ready.accept(2 * layer);
            if (layer > 0) previousDelta(layer, count);
        }
    }

    private void lossDelta(Idx set, int[] rows, int first, int count) {
        float scale = 1f / count;
        float[] probability = outputs[LAYERS - 1], delta = deltas[LAYERS - 1];
        int classes = WIDTHS[LAYERS];
        for (int i = 0; i < count * classes; ++i) {
            int label = set.labels[rows[first + i / classes]];
            delta[i] = scale * (probability[i] - (i % classes == label ? 1f : 0f));
        }
    }

    private void biasGradient(int layer, int count) {
        float[] gradient = gradients[2 * layer + 1];
        java.util.Arrays.fill(gradient, 0);
        for (int row = 0; row < count; ++row)
            addScaled(gradient, 0, 1, deltas[layer], row * gradient.length, gradient.length);
    }

    private void weightGradient(Idx set, int[] rows, int first, int count, int layer) {
        int in = WIDTHS[layer], out = WIDTHS[layer + 1];
        float[] gradient = gradients[2 * layer], input = input(set, layer), delta = deltas[layer];
        java.util.Arrays.fill(gradient, 0);
        for (int block = 0; block < in; block += ROW_BLOCK) {
            int end = Math.min(block + ROW_BLOCK, in);
            for (int row = 0; row < count; ++row) {
                int from = inputAt(rows, first, layer, row);
                for (int k = block; k < end; ++k) {
                    if (input[from + k] != 0)
                        addScaled(gradient, k * out, input[from + k], delta, row * out, out);
                }
            }
        }
    }

    /** The derivative by the outputs of the layer before, through its activation: zero where a unit
     * was switched off. */
    private void previousDelta(int layer, int count) {
        int in = WIDTHS[layer], out = WIDTHS[layer + 1];
        float[] input = outputs[layer - 1], previous = deltas[layer - 1];
        for (int row = 0; row < count; ++row) {
            for (int k = 0; k < in; ++k) {
                float y = input[row * in + k];
                previous[row * in + k] = y > 0 ? rectifySlope(y)
                                * dot(deltas[layer], row * out, values[2 * layer], k * out, out)
                                               : 0;
            }
        }
    }

    /** velocity = momentum * velocity + gradient; value -= rate * velocity */
    void update(float rate, float momentum) {
        for (int tensor = 0; tensor < values.length; ++tensor) {
            float[] value = values[tensor], velocity = velocities[tensor],
                    gradient = gradients[tensor];
            for (int i = 0; i < value.length; ++i) {
                velocity[i] = momentum * velocity[i] + gradient[i];
                value[i] -= rate * velocity[i];
            }
        }
    }
}
