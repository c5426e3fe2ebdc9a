package org.libddp;

/** Averages models that ranks train apart for some steps (ddp/averager.h). */
public final class Averager implements AutoCloseable {
    private final Handle<Kind.ddp_averager> handle;
    private final Context context;

    /**
     * Averages the parameters every {@code period} steps, over all ranks. Collective.
     *
     * @param context a committed context, between steps; {@link #step} needs it open
     * @param period the number of steps from one average to the next, at least 1
     */
    public Averager(Context context, long period) {
        this(context, new long[] {period}, null, 0);
    }

    /**
     * Averages every {@code periods[i]} steps over {@code groupSizes[i]} consecutive ranks. If several periods end at
     * once, only the longest counts. Collective.
     *
     * @param context a committed context, between steps; {@link #step} needs it open
     * @param periods in steps, growing: the first is at least 1, and each is a multiple of the one before
     * @param groupSizes in ranks, growing: each divides the next, and the last is the world size; null: one period, all
     *     ranks
     * @param warmupSteps the number of steps at the beginning without averaging; not negative
     */
    public Averager(Context context, long[] periods, int[] groupSizes, long warmupSteps) {
        this.context = context;
        long[] made = new long[1];
        ddp.ddp_averager_create(context.handle, new Object[] {periods, groupSizes}, warmupSteps, made);
        handle = Handle.own(Kind.AVERAGER, made[0]);
        handle.keep(context);
    }

    /**
     * Counts a step, and averages if it is due. Collective.
     *
     * @return over how many ranks it averaged; 0 if it did not
     */
    public int step() {
        int[] ranks = new int[1];
        long at = Handle.enter(context.handle); // not freed meanwhile
        try {
            ddp.ddp_averager_step(handle, ranks);
        } finally {
            Handle.leave(context.handle, at);
        }
        return ranks[0];
    }

    /** {@return the number of counted steps, for a checkpoint} */
    public long steps() {
        return ddp.ddp_averager_get_step(handle);
    }

    /**
     * Sets the number of counted steps, from a checkpoint. Every rank must set the same.
     *
     * @param value not negative
     */
    public void steps(long value) {
        ddp.ddp_averager_set_step(handle, value);
    }

    /** Frees the averager. The context stays open. */
    @Override
    public void close() {
        Handle.close(handle);
    }
}
