package org.libddp;

/** Types of elements. Complex numbers are pairs of a real and an imaginary part. */
public enum Dtype {
    /** IEEE 754 binary16; the bits are in shorts. */
    F16(1, 2),
    /** The upper half of an IEEE 754 binary32; the bits are in shorts. */
    BF16(2, 2),
    F32(3, 4),
    F64(4, 8),
    I32(5, 4),
    I64(6, 8),
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

    /** Bytes of an element. */
    public int size() {
        return size;
    }

    static Dtype of(int code) {
        return values()[code - 1];
    }
}
