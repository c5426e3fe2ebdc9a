import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.libddp.Context;
import org.libddp.Group;
import org.libddp.Parameter;

/**
 * The cost of ddp_grad_ready from Java: a JSON line as ddp-bench prints it, with the median over
 * rounds, the loop included. The gradients are views of one element in one bucket, so that nothing
 * is copied and nothing is sent meanwhile.
 *
 * <pre>java -cp libddp.jar GradReady.java [--limit-ns N]      ends with status 1 if the median is
 * more</pre>
 */
final class GradReady {
    private static final int PARAMS = 2000;
    private static final int WARM_UP = 300;
    private static final int ROUNDS = 101;

    private GradReady() {}

    private static double round(Context context, List<Parameter> parameters) {
        context.stepBegin();
        long start = System.nanoTime();
        for (Parameter parameter : parameters) context.gradReady(parameter);
        double each = (double) (System.nanoTime() - start) / PARAMS;
        context.finalizeStep();
        return each;
    }

    public static void main(String[] arguments) {
        double limit = arguments.length == 2 && arguments[0].equals("--limit-ns")
                ? Double.parseDouble(arguments[1])
                : 1e9;
        double[] rounds = new double[ROUNDS];
        String backend;
        try (Group group = Group.alone(); Context context = new Context(group)) {
            List<Parameter> parameters = new ArrayList<>();
            for (int i = 0; i < PARAMS; ++i)
                parameters.add(context.parameter("p" + i).shape(1).register());
            context.commit();
            backend = group.backend();
            for (int i = 0; i < WARM_UP; ++i) round(context, parameters);
            for (int i = 0; i < ROUNDS; ++i) rounds[i] = round(context, parameters);
        }
        Arrays.sort(rounds);
        double median = rounds[ROUNDS / 2];
        double ms = PARAMS * 1e-6;
        System.out.printf(Locale.ROOT,
                "{\"name\":\"grad-ready\",\"world\":1,\"backend\":\"%s\",\"bytes\":%d,\"iters\":%d,\"median_ms\":%.6f,\"p10_ms\":%.6f,"
                        + "\"p90_ms\":%.6f,\"params\":%d,\"ns_per_call\":%.1f,\"language\":\"java %s\"}%n",
                backend, 4 * PARAMS, ROUNDS, ms * median, ms * rounds[ROUNDS / 10],
                ms * rounds[ROUNDS - 1 - ROUNDS / 10], PARAMS, median,
                System.getProperty("java.version"));
        System.exit(median <= limit ? 0 : 1);
    }
}
