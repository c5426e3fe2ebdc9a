package org.libddp;

/** The votes of a step: {@link Context#votes}. libddp acts on none of them. */
public final class Votes {
    /** End the training after this step. */
    public static final long STOP = ddp.DDP_VOTE_STOP;
    /** Write a checkpoint after this step. */
    public static final long CHECKPOINT = ddp.DDP_VOTE_CHECKPOINT;
    /** Do not apply this step's gradients. */
    public static final long SKIP = ddp.DDP_VOTE_SKIP;
    /** A loss was not finite. */
    public static final long NONFINITE = ddp.DDP_VOTE_NONFINITE;
    /** This bit and the 15 above it belong to the program. */
    public static final long USER = ddp.DDP_VOTE_USER;

    private final long any;
    private final long all;
    private final int level;

    Votes(long any, long all, int level) {
        this.any = any;
        this.all = all;
        this.level = level;
    }

    /**
     * {@return whether at least one rank has cast one of these}
     *
     * @param bits constants of this class, joined by |
     */
    public boolean any(long bits) {
        return (any & bits) != 0;
    }

    /**
     * {@return whether every rank has cast all of these}
     *
     * @param bits constants of this class, joined by |
     */
    public boolean all(long bits) {
        return (all & bits) == bits;
    }

    /** {@return the greatest level of any rank; 0 if there was none} */
    public int level() {
        return level;
    }
}
