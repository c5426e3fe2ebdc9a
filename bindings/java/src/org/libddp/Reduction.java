package org.libddp;

/** What a context makes of the ranks' gradients. */
public enum Reduction {
    /** The sum over ranks divided by the world size. */
    MEAN(0),
    SUM(1),
    /** The mean by the weights of {@link Context#setWeight}: that of the global batch when batches differ in size. */
    WEIGHTED_MEAN(2);

    final int code;

    Reduction(int code) {
        this.code = code;
    }
}
