package org.libddp;

/** The operation of a reduction on the ranks' elements. */
public enum Op {
    /** The sum. */
    SUM(1),
    /** The sum divided by the number of ranks; integers are truncated toward zero. */
    AVG(2),
    /** The product. */
    PROD(3),
    /** The least; not for complex numbers. */
    MIN(4),
    /** The largest; not for complex numbers. */
    MAX(5);

    final int code;

    Op(int code) {
        this.code = code;
    }

    static Op of(int code) {
        return values()[code - 1];
    }
}
