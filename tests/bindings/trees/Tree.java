import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.libddp.ContextOptions;
import org.libddp.DataParallel;
import org.libddp.Group;
import org.libddp.Parameter;

/** A rank of one_tree_test.py in Java. */
public final class Tree {
    private static float[] array(int count, float value) {
        float[] made = new float[count];
        Arrays.fill(made, value);
        return made;
    }

    private static Map<String, Object> layer(float value) {
        return Map.of("w", array(3, value), "bias", array(2, value));
    }

    private static Map<String, Object> tree(float value) {
        return Map.of("layers", List.of(layer(value), layer(value)), "again",
                List.of(List.of(array(1, value))));
    }

    private static void check(Object tree, float value) {
        if (tree instanceof Map) {
            ((Map<?, ?>) tree).values().forEach(part -> check(part, value));
        } else if (tree instanceof List) {
            ((List<?>) tree).forEach(part -> check(part, value));
        } else if (!Arrays.equals((float[]) tree, array(((float[]) tree).length, value))) {
            throw new AssertionError(Arrays.toString((float[]) tree) + " is not " + value);
        }
    }

    public static void main(String[] arguments) {
        try (Group group = new Group()) {
            Map<String, Object> parameters = tree(group.rank() == 0 ? 1 : 0);
            DataParallel parallel = new DataParallel(group, parameters, new ContextOptions());
            check(parameters, 1);
            for (int step = 0; step < 3; ++step) {
                Map<String, Object> gradients = tree(step + group.rank());
                parallel.mean(gradients);
                check(gradients, step + (group.worldSize() - 1) / 2f);
            }
            System.out.println("rank " + group.rank() + " (Java): "
                    + parallel.context()
                              .parameters()
                              .stream()
                              .map(Parameter::name)
                              .collect(Collectors.joining(" ")));
            parallel.close();
        }
    }
}
