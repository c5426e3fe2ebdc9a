package org.libddp;

/** The result that a context makes of the ranks' gradients. */
public enum Reduction {
    /** The sum over ranks divided by the world size. */
    MEAN(0),
    /** The sum over ranks. */
    SUM(1),
    /**
     * The mean by the weights of {@link Context#setWeight}: that of the global batch when batches
     * differ in size. Not for integers.
     */
    WEIGHTED_MEAN(2);

    final int code;

    Reduction(int code) {
        this.code = code;
    }
}
