package org.libddp;

/** Types of elements. Complex numbers are pairs of a real and an imaginary part. */
public enum Dtype {
    /** IEEE 754 binary16; the bits are in shorts. */
    F16(1, 2),
    /** The upper half of an IEEE 754 binary32; the bits are in shorts. */
    BF16(2, 2),
    /** IEEE 754 binary32, Java's {@code float}. */
    F32(3, 4),
    /** IEEE 754 binary64, Java's {@code double}. */
    F64(4, 8),
    /** Java's {@code int}. */
    I32(5, 4),
    /** Java's {@code long}. */
    I64(6, 8),
    /** A byte without a sign. */
    U8(7, 1),
    /** Two {@link #F32}. */
    C64(8, 8),
    /** Two {@link #F64}. */
    C128(9, 16);

    final int code;
    private final int size;

    Dtype(int code, int size) {
        this.code = code;
        this.size = size;
    }

    /** {@return the bytes of an element} */
    public int size() {
        return size;
    }

    static Dtype of(int code) {
        return values()[code - 1];
    }
}
