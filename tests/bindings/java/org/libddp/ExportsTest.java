package org.libddp;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** Every function that the library exports is in the low-level class, and every constant of the
 * headers. */
class ExportsTest {
    private static final Path ROOT = Path.of(System.getenv("DDP_SOURCE"));

    @Test
    void functions() throws Exception {
        Set<String> exported = new TreeSet<>(Files.readAllLines(ROOT.resolve("abi/ddp.symbols")));
        exported.removeIf(String::isBlank);
        assertTrue(exported.size() > 100);
        Set<String> bound = Arrays.stream(ddp.class.getDeclaredMethods())
                                    .map(Method::getName)
                                    .collect(Collectors.toSet());
        exported.removeAll(bound);
        assertEquals(Set.of(), exported);
    }

    @Test
    void constants() throws Exception {
        List<Path> headers;
        try (Stream<Path> all = Files.list(ROOT.resolve("include/ddp"))) {
            headers = all.filter(path -> path.toString().endsWith(".h")).sorted().toList();
        }
        Set<String> names = new TreeSet<>();
        for (Path header : headers) {
            String text = Files.readString(header).replaceAll("(?s)/\\*.*?\\*/", "");
            Matcher bodies = Pattern.compile("(?s)\\benum \\{(.*?)\\}").matcher(text);
            while (bodies.find()) {
                Matcher each = Pattern.compile("\\bDDP_\\w+").matcher(bodies.group(1));
                while (each.find()) names.add(each.group());
            }
        }
        assertTrue(names.size() > 50);
        for (String name : names) ddpConstants.class.getField(name).getInt(null);
    }

    @Test
    void namesOfTypesAreTheLibrarys() {
        for (Dtype each : Dtype.values()) {
            assertEquals(
                    ddp.ddp_dtype_name(each.code), each.name().toLowerCase(java.util.Locale.ROOT));
            assertEquals(ddp.ddp_dtype_size(each.code), each.size());
        }
        assertEquals(List.of(ddp.DDP_SUM, ddp.DDP_AVG, ddp.DDP_PROD, ddp.DDP_MIN, ddp.DDP_MAX),
                Arrays.stream(Op.values()).map(op -> op.code).toList());
        assertEquals(List.of(ddp.DDP_REDUCTION_MEAN, ddp.DDP_REDUCTION_SUM,
                             ddp.DDP_REDUCTION_WEIGHTED_MEAN),
                Arrays.stream(Reduction.values()).map(each -> each.code).toList());
        assertEquals(List.of(ddp.DDP_OWNER_ELEMENTS, ddp.DDP_OWNER_WHOLE, ddp.DDP_OWNER_REPLICATED),
                Arrays.stream(Owner.values()).map(each -> each.code).toList());
        assertEquals(List.of(ddp.DDP_KEEP_AT_NEIGHBOUR, ddp.DDP_KEEP_IN_CHECKPOINT),
                Arrays.stream(Keep.values()).map(each -> each.code).toList());
        assertEquals(List.of(ddp.DDP_DEVICE_CPU, ddp.DDP_DEVICE_CUDA),
                Arrays.stream(Device.Type.values()).map(type -> type.code).toList());
    }

    /** The exception of a status has the status's name, as far as words of Java's own allow. */
    @Test
    void everyStatusHasAnException() {
        for (int status = ddp.DDP_ERROR_NONFINITE; status < 0; ++status) {
            DdpException made = DdpException.make(status, "text".getBytes(), 1, 2, 3, 4);
            assertEquals(status, made.status());
            String name = ddp.ddp_status_name(status)
                                  .replace("DDP_ERROR_", "")
                                  .replace("_", "")
                                  .toLowerCase(java.util.Locale.ROOT);
            String simple = made.getClass().getSimpleName().toLowerCase(java.util.Locale.ROOT);
            assertTrue(simple.startsWith(name), name + ": " + simple);
        }
        assertEquals(DdpException.class,
                DdpException.make(-1000, "x".getBytes(), -1, -1, -1, -1).getClass());
    }

    @Test
    void onlyWhatIsMeantForUsersIsPublic() throws Exception {
        List<String> shown = new ArrayList<>();
        try (java.util.jar.JarFile jar =
                        new java.util.jar.JarFile(Path.of(Group.class.getProtectionDomain()
                                                                      .getCodeSource()
                                                                      .getLocation()
                                                                      .toURI())
                                                          .toFile())) {
            for (java.util.jar.JarEntry each : java.util.Collections.list(jar.entries())) {
                if (!each.getName().endsWith(".class")) continue;
                Class<?> found =
                        Class.forName(each.getName().replace(".class", "").replace('/', '.'));
                if (Modifier.isPublic(found.getModifiers())
                        && found.getSimpleName().startsWith("ddp"))
                    shown.add(found.getName());
            }
        }
        assertEquals(List.of(), shown);
    }
}
