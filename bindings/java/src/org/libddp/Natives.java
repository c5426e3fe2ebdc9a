package org.libddp;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Finds and loads the native libraries, once: from the folder or file of the system property {@code
 * org.libddp.library}, from that of {@link Ddp#library}, from the jar, or else from {@code
 * java.library.path}.
 */
final class Natives {
    static final String PROPERTY = "org.libddp.library";
    private static final String NAME = "ddp_jni";

    private static Path explicit;
    private static boolean loaded;

    private Natives() {}

    static synchronized void choose(Path path) {
        if (loaded) {
            throw new IllegalStateException(
                    "libddp is loaded already: choose its library before the first use");
        }
        explicit = path.toAbsolutePath();
    }

    static synchronized void load() {
        if (loaded) return;
        String property = System.getProperty(PROPERTY);
        if (property != null && !property.isEmpty()) {
            load(Path.of(property).toAbsolutePath());
        } else if (explicit != null) {
            load(explicit);
        } else if (!loadFromJar()) {
            System.loadLibrary(NAME);
        }
        loaded = true;
    }

    private static void load(Path path) {
        Path file = Files.isDirectory(path) ? path.resolve(System.mapLibraryName(NAME)) : path;
        System.load(file.toString());
    }

    /** The folder in the jar: {@code native/linux-x64/} here. */
    private static String folder() {
        String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
        String machine = System.getProperty("os.arch");
        machine = Map.of("amd64", "x64", "x86_64", "x64", "aarch64", "arm64")
                          .getOrDefault(machine, machine);
        return "/native/" + system + "-" + machine + "/";
    }

    /** False if the jar has none for this machine. */
    private static boolean loadFromJar() {
        List<String> names = new ArrayList<>(); // each after those that it needs
        try (InputStream list = Natives.class.getResourceAsStream(folder() + "libraries")) {
            if (list == null) return false;
            BufferedReader lines =
                    new BufferedReader(new InputStreamReader(list, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine())
                names.add(line);
            loadCopies(names);
            return true;
        } catch (IOException e) {
            throw wrong("libddp's libraries in the jar cannot be copied to "
                            + System.getProperty("java.io.tmpdir")
                            + " (property java.io.tmpdir): " + e.getMessage(),
                    e);
        } catch (UnsatisfiedLinkError e) {
            throw wrong("libddp's libraries in the jar cannot be loaded from "
                            + System.getProperty("java.io.tmpdir")
                            + " (property java.io.tmpdir), or lack what they need: "
                            + e.getMessage(),
                    e);
        }
    }

    /** The files are gone before this returns: what is loaded needs none, and nothing is left
     * behind by a process that is killed. */
    private static void loadCopies(List<String> names) throws IOException {
        Path scratch = Files.createTempDirectory("libddp-");
        List<Path> copies = new ArrayList<>();
        try {
            for (String name : names) {
                Path copy = scratch.resolve(name);
                copies.add(copy);
                try (InputStream library = Natives.class.getResourceAsStream(folder() + name)) {
                    if (library == null)
                        throw new IOException(folder() + name + " is missing in the jar");
                    Files.copy(library, copy);
                }
            }
            for (Path copy : copies) System.load(copy.toString());
        } finally {
            for (Path copy : copies) Files.deleteIfExists(copy);
            Files.delete(scratch);
        }
    }

    private static UnsatisfiedLinkError wrong(String message, Throwable cause) {
        UnsatisfiedLinkError error = new UnsatisfiedLinkError(message);
        error.initCause(cause);
        return error;
    }
}
