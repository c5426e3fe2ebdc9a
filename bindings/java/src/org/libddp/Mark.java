package org.libddp;

/**
 * A span of the program's own in traces, in the record of this process (ddp/record.h). Marks of a
 * thread nest.
 *
 * <pre>{@code
 * try (Mark mark = new Mark("forward")) {
 *     ...
 * }
 * }</pre>
 */
public final class Mark implements AutoCloseable {
    /**
     * Begins the mark. Without a record it costs next to nothing.
     *
     * @param name as it shall stand in the trace; at most 200 bytes count
     */
    public Mark(String name) {
        ddp.ddp_mark_begin(name);
    }

    /** Ends the mark, on the thread that began it. */
    @Override
    public void close() {
        ddp.ddp_mark_end();
    }

    /**
     * Says how much work there is, for {@code ddprun --status}.
     *
     * @param samples how many this rank takes in a step; 0: unknown
     * @param steps of the whole run; 0: unknown
     */
    public static void workload(long samples, long steps) {
        ddp.ddp_set_workload(samples, steps);
    }

    /**
     * When a group breaks with an error that names this rank, the process sends itself this signal.
     * At 3 (SIGQUIT) a virtual machine prints the stacks of all threads, so a rank that hangs shows
     * where.
     *
     * @param signal its number; 0: none
     */
    public static void blameSignal(int signal) {
        ddp.ddp_set_blame_signal(signal);
    }
}
