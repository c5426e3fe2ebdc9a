package org.libddp;

import java.lang.reflect.Array;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Averages the gradients of a model whose parameters are arrays on the heap: {@code float[]} and
 * {@code double[]}, alone or in maps with text as keys, lists and arrays of such, to any depth. A
 * {@code float[][]} is such an array.
 *
 * <pre>{@code
 * DataParallel parallel = new DataParallel(parameters);   // every rank starts from rank 0's values
 * for (...) {
 *     computeGradients(parameters, gradients);            // of this rank's samples; gradients has the shape of parameters
 *     parallel.mean(gradients);                           // now they are the mean over ranks
 *     update(parameters, gradients);
 * }
 * }</pre>
 *
 * <p>Arrays are copied to libddp's buckets and back. {@link Context} takes direct buffers where
 * they lie, and each gradient as soon as it is ready. Of the parameters {@link #context()} has the
 * first values only. So {@link Context#averageParameters}, {@link Averager}, {@link
 * Elastic#addContext}, {@link Context#join} and {@link ContextOptions#verifyInterval} refuse it
 * with an IllegalStateException. So does {@link Context#noSync}: add gradients up instead.
 */
public final class DataParallel implements AutoCloseable {
    private final Context context;
    private final Map<String, Parameter> parameters = new LinkedHashMap<>();

    /**
     * Registers the arrays in the group of the job, with the default options. Collective.
     *
     * @param parameters the arrays of the model, which rank 0's values overwrite
     */
    public DataParallel(Object parameters) {
        this(new Group(), parameters, new ContextOptions());
    }

    /**
     * Registers the arrays, and overwrites them with rank 0's values. Collective.
     *
     * @param group the ranks to communicate with; the context keeps the group alive
     * @param parameters the arrays of the model; the same structure and lengths on every rank
     * @param options the same on every rank
     */
    public DataParallel(Group group, Object parameters, ContextOptions options) {
        Map<String, Object> arrays = arraysOf("parameters", parameters);
        if (arrays.isEmpty()) {
            throw new IllegalArgumentException("parameters: there is no array in it");
        }
        List<Buffer> values = new ArrayList<>();
        if (options.verifyInterval != 0) {
            throw Context.firstValues("verifyInterval");
        }
        context = new Context(group, options);
        context.hasFirstValues = true;
        try {
            arrays.forEach((path, array) -> {
                Buffer value = directOf(array);
                write(array, value);
                values.add(value);
                this.parameters.put(path, context.register(path, value, Array.getLength(array)));
            });
            context.commit();
        } catch (RuntimeException e) {
            context.close();
            throw e;
        }
        int next = 0;
        for (Object array : arrays.values()) {
            read(values.get(next++), array);
        }
    }

    /**
     * Overwrites the gradients of this rank with the mean over ranks. Collective.
     *
     * @param gradients arrays with the structure, types and lengths of the parameters
     */
    public void mean(Object gradients) {
        Map<String, Object> arrays = arraysOf("gradients", gradients);
        check(arrays);
        context.stepBegin();
        List<String> backward = new ArrayList<>(arrays.keySet());
        for (int at = backward.size() - 1; at >= 0; --at) {
            Parameter parameter = parameters.get(backward.get(at));
            write(arrays.get(backward.get(at)), view(parameter));
            context.gradReady(parameter);
        }
        context.finalizeStep();
        arrays.forEach((path, array) -> read(view(parameters.get(path)), array));
    }

    /** {@return the context, for hooks and statistics} */
    public Context context() {
        return context;
    }

    /** Closes the context. The arrays stay as they are. */
    @Override
    public void close() {
        context.close();
    }

    /** Before any rank waits for this one. */
    private void check(Map<String, Object> arrays) {
        for (String path : parameters.keySet()) {
            if (!arrays.containsKey(path)) {
                throw new IllegalArgumentException("gradients: " + path + " is missing");
            }
        }
        arrays.forEach((path, array) -> {
            Parameter parameter = parameters.get(path);
            if (parameter == null) {
                throw new IllegalArgumentException(
                        "gradients: " + path + " is not among the parameters");
            }
            Dtype dtype = array instanceof float[] ? Dtype.F32 : Dtype.F64;
            long count = Memory.count(parameter.shape());
            if (dtype != parameter.dtype() || Array.getLength(array) != count) {
                throw new IllegalArgumentException("gradients: " + path + " has "
                        + Array.getLength(array) + " elements of type " + dtype + ", the parameter "
                        + count + " of type " + parameter.dtype());
            }
        });
    }

    /** Each array in a tree, by its path, in an order that does not depend on how a map is ordered.
     */
    private static Map<String, Object> arraysOf(String argument, Object tree) {
        Map<String, Object> found = new LinkedHashMap<>();
        collect(argument, tree, "", found);
        return found;
    }

    private static String child(String path, String key) {
        return path.isEmpty() ? key : path + "." + key;
    }

    private static void collect(
            String argument, Object tree, String path, Map<String, Object> found) {
        if (tree instanceof float[] || tree instanceof double[]) {
            found.put(path.isEmpty() ? "params" : path, tree);
        } else if (tree instanceof Map) {
            Map<String, Object> sorted = new TreeMap<>();
            ((Map<?, ?>) tree).forEach((key, value) -> sorted.put(String.valueOf(key), value));
            sorted.forEach((key, value) -> collect(argument, value, child(path, key), found));
        } else if (tree instanceof List || tree instanceof Object[]) {
            List<?> parts = tree instanceof List ? (List<?>) tree : Arrays.asList((Object[]) tree);
            int at = 0;
            for (Object part : parts) {
                collect(argument, part, child(path, String.valueOf(at++)), found);
            }
        } else {
            throw new IllegalArgumentException(argument + ": " + (path.isEmpty() ? "it" : path)
                    + " is " + (tree == null ? "null" : "of " + tree.getClass())
                    + "; float[], double[], and maps, lists and arrays of such are taken");
        }
    }

    private static Buffer directOf(Object array) {
        int width = array instanceof float[] ? Float.BYTES : Double.BYTES;
        ByteBuffer bytes =
                ByteBuffer.allocateDirect(Math.multiplyExact(width, Array.getLength(array)))
                        .order(ByteOrder.nativeOrder());
        return array instanceof float[] ? bytes.asFloatBuffer() : bytes.asDoubleBuffer();
    }

    private static Buffer view(Parameter parameter) {
        return parameter.dtype() == Dtype.F32 ? parameter.view().floats()
                                              : parameter.view().doubles();
    }

    private static void write(Object array, Buffer to) {
        if (array instanceof float[]) {
            ((FloatBuffer) to).duplicate().put((float[]) array);
        } else {
            ((DoubleBuffer) to).duplicate().put((double[]) array);
        }
    }

    private static void read(Buffer from, Object array) {
        if (array instanceof float[]) {
            ((FloatBuffer) from).duplicate().get((float[]) array);
        } else {
            ((DoubleBuffer) from).duplicate().get((double[]) array);
        }
    }
}
