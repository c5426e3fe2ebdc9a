package org.libddp;

/** Averages models that ranks train apart for some steps (ddp/averager.h). */
public final class Averager implements AutoCloseable {
    private final Handle<Kind.ddp_averager> handle;

    /** Averages the parameters every {@code period} steps. Collective. */
    public Averager(Context context, long period) {
        this(context, new long[] {period}, null, 0);
    }

    /**
     * Averages every {@code periods[i]} steps over {@code groupSizes[i]} ranks (null: one period, all ranks), not in the first
     * {@code warmupSteps}. Collective.
     */
    public Averager(Context context, long[] periods, int[] groupSizes, long warmupSteps) {
        long[] made = new long[1];
        ddp.ddp_averager_create(context.handle, new Object[] {periods, groupSizes}, warmupSteps, made);
        handle = Handle.own(Kind.AVERAGER, made[0]);
        handle.keep(context);
    }

    /** Counts a step, and averages if it is due. Returns over how many ranks it averaged; 0 if it did not. */
    public int step() {
        int[] ranks = new int[1];
        ddp.ddp_averager_step(handle, ranks);
        return ranks[0];
    }

    /** The number of counted steps. */
    public long steps() {
        return ddp.ddp_averager_get_step(handle);
    }

    /** Sets it, from a checkpoint. */
    public void steps(long value) {
        ddp.ddp_averager_set_step(handle, value);
    }

    /** Frees it. */
    @Override
    public void close() {
        Handle.close(handle);
    }
}
