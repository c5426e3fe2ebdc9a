package org.libddp;

/** What a reduction does to the ranks' elements. */
public enum Op {
    SUM(1),
    /** The sum divided by the number of ranks. */
    AVG(2),
    PROD(3),
    MIN(4),
    MAX(5);

    final int code;

    Op(int code) {
        this.code = code;
    }

    static Op of(int code) {
        return values()[code - 1];
    }
}
