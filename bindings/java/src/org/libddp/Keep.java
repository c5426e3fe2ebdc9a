package org.libddp;

/** Where {@link Elastic#keepShards} keeps the state of a step. */
public enum Keep {
    /** In the memory of this rank and of a neighbour. */
    AT_NEIGHBOUR(0),
    /** Nowhere: the program has saved it ({@link Context#saveShards}), and loads it after a change
     * of the roster. */
    IN_CHECKPOINT(1);

    final int code;

    Keep(int code) {
        this.code = code;
    }
}
