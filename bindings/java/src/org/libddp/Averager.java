package org.libddp;

/** Averages models that ranks train apart for some steps (ddp/averager.h). */
public final class Averager implements AutoCloseable {
    /** Kinds of outer optimizers. */
    public enum Outer {
        /** None: averages are plain. */
        NONE(ddp.DDP_OUTER_NONE),
        /** SGD, with or without momentum. */
        SGD(ddp.DDP_OUTER_SGD),
        /** SGD with Nesterov's momentum: the one of DiLoCo. */
        NESTEROV(ddp.DDP_OUTER_NESTEROV),
        /** The outer optimizer of SlowMo. */
        SLOWMO(ddp.DDP_OUTER_SLOWMO);

        private final int code;

        Outer(int code) {
            this.code = code;
        }
    }

    final Handle<Kind.ddp_averager> handle;
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
     * Averages every {@code periods[i]} steps over {@code groupSizes[i]} consecutive ranks. If
     * several periods end at once, only the longest counts. Collective.
     *
     * @param context a committed context, between steps; {@link #step} needs it open
     * @param periods in steps, growing: the first is at least 1, and each is a multiple of the one
     *     before
     * @param groupSizes in ranks, growing: each divides the next, and the last is the world size;
     *     null: one period, all ranks
     * @param warmupSteps the number of steps at the beginning without averaging; not negative
     */
    public Averager(Context context, long[] periods, int[] groupSizes, long warmupSteps) {
        context.requireValues("Averager");
        this.context = context;
        long[] made = new long[1];
        ddp.ddp_averager_create(
                context.handle, new Object[] {periods, groupSizes}, warmupSteps, made);
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
        inContext(() -> ddp.ddp_averager_step(handle, ranks));
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

    /**
     * Sets an outer optimizer, which steps after each average over all ranks. With the same kind
     * again it changes the rates. Every rank must set the same.
     *
     * @param kind of the outer optimizer
     * @param learningRate not negative; 0.7 in DiLoCo
     * @param momentum at least 0 and less than 1; 0.9 in DiLoCo
     * @param innerLearningRate for SLOWMO, of the model's own optimizer, more than 0; others ignore
     *     it
     */
    public void setOuter(
            Outer kind, double learningRate, double momentum, double innerLearningRate) {
        setOuter(kind, learningRate, momentum, innerLearningRate, 1, 0, 0, null);
    }

    /**
     * Sets an outer optimizer whose fragments take turns, as in Streaming DiLoCo. Every rank must
     * set the same.
     *
     * @param kind of the outer optimizer
     * @param learningRate not negative; 0.7 in DiLoCo
     * @param momentum at least 0 and less than 1; 0.9 in DiLoCo
     * @param innerLearningRate for SLOWMO, as above
     * @param fragments a divisor of the period
     * @param delay after how many steps a fragment that left is mixed in; less than period /
     *     fragments
     * @param alpha the weight of this rank's own values in that; at least 0 and less than 1
     * @param sentDtype BF16 or U8: outer gradients travel in this type, with U8 as blocks of int8;
     *     null: values in their own
     */
    public void setOuter(Outer kind, double learningRate, double momentum, double innerLearningRate,
            int fragments, long delay, double alpha, Dtype sentDtype) {
        try (ddp_outer_options options = new ddp_outer_options()) {
            options.setKind(kind.code);
            options.setLearning_rate(learningRate);
            options.setMomentum(momentum);
            options.setInner_learning_rate(innerLearningRate);
            options.setFragments(fragments);
            options.setDelay(delay);
            options.setAlpha(alpha);
            options.setSent_dtype(sentDtype == null ? 0 : sentDtype.code);
            inContext(() -> ddp.ddp_averager_set_outer(handle, options));
        }
    }

    /**
     * Says which parameters form which fragment; otherwise runs of them do.
     *
     * @param fragmentOf the fragment of each parameter, in the order of registration
     */
    public void setFragments(int... fragmentOf) {
        inContext(() -> ddp.ddp_averager_set_fragments(handle, fragmentOf));
    }

    /** Takes the model back to its last outer step: every rank has the outer parameters. */
    public void goBack() {
        inContext(() -> ddp.ddp_averager_go_back(handle));
    }

    /** {@return the number of counted steps and the state of the outer optimizer, in the safetensors
     * format; the same on every rank} */
    public byte[] state() {
        byte[][] state = new byte[1][];
        inContext(() -> ddp.ddp_averager_state_save(handle, state));
        return state[0];
    }

    /**
     * Loads a saved state. Set the outer optimizer first.
     *
     * @param state the result of {@link #state}
     */
    public void loadState(byte[] state) {
        inContext(() -> ddp.ddp_averager_state_load(handle, state));
    }

    // The context is not freed meanwhile.
    private void inContext(Runnable call) {
        long at = Handle.enter(context.handle);
        try {
            if (at == Handle.CLOSED)
                throw new IllegalStateException("the context of this averager is closed");
            call.run();
        } finally {
            Handle.leave(context.handle, at);
        }
    }

    /** Frees the averager. The context stays open. */
    @Override
    public void close() {
        Handle.close(handle);
    }
}
