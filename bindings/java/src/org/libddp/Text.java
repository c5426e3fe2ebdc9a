package org.libddp;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;

/** Text on its way to C and back: UTF-8, with a NUL at the end of what C reads. */
final class Text {
    private Text() {}

    /** name: of the argument, for the complaint. */
    static byte[] bytes(String name, String text) {
        if (checked(name, text) == null) return null;
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        return Arrays.copyOf(utf8, utf8.length + 1);
    }

    /** The text itself, which C can hold. */
    static String checked(String name, String text) {
        if (text == null || text.indexOf('\0') < 0) return text;
        throw new IllegalArgumentException(name + ": text may not contain the character U+0000");
    }

    static byte[][] list(String name, Collection<String> texts) {
        byte[][] list = new byte[texts.size()][];
        int i = 0;
        for (String each : texts) list[i++] = bytes(name, each);
        return list;
    }

    static String of(byte[] utf8) {
        return utf8 == null ? null : new String(utf8, StandardCharsets.UTF_8);
    }
}
