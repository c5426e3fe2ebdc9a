package org.libddp;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.function.Executable;

/** For the tests beside this file. */
final class Support {
    private Support() {}

    static ByteBuffer bytes(int count) {
        return ByteBuffer.allocateDirect(count).order(ByteOrder.nativeOrder());
    }

    static FloatBuffer floats(float... values) {
        return bytes(4 * values.length).asFloatBuffer().put(values).flip();
    }

    static FloatBuffer full(int count, float value) {
        FloatBuffer made = bytes(4 * count).asFloatBuffer();
        for (int i = 0; i < count; ++i) made.put(i, value);
        return made;
    }

    static float[] array(FloatBuffer buffer) {
        float[] values = new float[buffer.remaining()];
        buffer.duplicate().get(values);
        return values;
    }

    static Group alone() {
        return new Group(new GroupOptions().rank(0).worldSize(1).timeout(Duration.ofSeconds(20)));
    }

    /** Names of C's functions and constants in a message. */
    static List<String> namesOfC(String message) {
        return Pattern.compile("\\b(?:ddp|DDP)_\\w+")
                .matcher(String.valueOf(message))
                .results()
                .map(MatchResult::group)
                .filter(Words.names()::contains)
                .collect(Collectors.toList());
    }

    /** An exception of this class whose message has these words, and no names of C. */
    static <T extends Throwable> T raises(Class<T> kind, String words, Executable call) {
        T thrown = assertThrows(kind, call);
        assertEquals(List.of(), namesOfC(thrown.getMessage()));
        assertTrue(String.valueOf(thrown.getMessage()).contains(words),
                "\"" + words + "\" is not in: " + thrown);
        return thrown;
    }

    static long residentKib() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS")) return Long.parseLong(line.replaceAll("\\D", ""));
        }
        throw new AssertionError("no VmRSS");
    }

    /** Until the condition holds, collecting garbage meanwhile; at most 20 s. */
    static void collectUntil(java.util.function.BooleanSupplier done) throws Exception {
        for (int i = 0; i < 2000 && !done.getAsBoolean(); ++i) {
            System.gc();
            Thread.sleep(10);
        }
        assertTrue(done.getAsBoolean(), "it was not collected");
    }
}
