package org.libddp;

import java.nio.file.Path;
import java.time.Duration;

/** Facts about the library. {@link Group} and {@link Context} are where training begins. */
public final class Ddp {
    private Ddp() {}

    /**
     * Says where the native library is. Call it before anything else of this package. The system
     * property {@code org.libddp.library} has precedence. Without both, the library comes from the
     * jar, then from {@code java.library.path}.
     *
     * @param path the file, or the folder that contains {@code libddp_jni.so}
     */
    public static void library(Path path) {
        Natives.choose(path);
    }

    /** {@return the version of the loaded library: "0.1.0"} */
    public static String version() {
        return ddp.ddp_version();
    }

    /**
     * {@return whether a group can be created with this backend}
     *
     * @param name as for {@link GroupOptions#backend}
     */
    public static boolean backendAvailable(String name) {
        try {
            return ddp.ddp_backend_available(name) != 0;
        } catch (DdpException e) {
            return false;
        }
    }

    /**
     * Registers the program's own transport for {@link GroupOptions#backend}.
     *
     * @param address the address of a {@code ddp_backend}, a table of C functions (ddp/backend.h)
     */
    public static void registerBackend(long address) {
        ddp.ddp_backend_register(address);
    }

    /** As libddp takes times: 0 for null, the default, and never rounded down to it. */
    static long milliseconds(String what, Duration time) {
        if (time == null) return 0;
        if (time.isNegative() || time.isZero())
            throw new IllegalArgumentException(what + ": a time of " + time + " is not positive");
        return Math.max(1, time.toMillis());
    }
}
