package org.libddp;

import java.util.ArrayList;
import java.util.List;

/**
 * SGD, AdamW, LAMB or Muon for all parameters of a context (ddp/optimizer.h), which are on the CPU.
 * With {@link ContextOptions#shard} each rank updates its own pieces, and has the state of those.
 */
public final class Optimizer implements AutoCloseable {
    final Handle<Kind.ddp_optimizer> handle;
    private final Context context;

    /**
     * An optimizer with state of zeros. Collective.
     *
     * @param context a committed context, between steps; the other methods need it open
     * @param name "sgd", "adamw", "lamb" or "muon"
     * @param options "key=value,key=value", the same on every rank: "lr=3e-4,weight_decay=0.1".
     *     ddp/optimizer.h has those of each optimizer. null: the defaults
     */
    public Optimizer(Context context, String name, String options) {
        context.requireValues("Optimizer");
        this.context = context;
        long[] made = new long[1];
        ddp.ddp_optimizer_create(context.handle, name, options, made);
        handle = Handle.own(Kind.OPTIMIZER, made[0]);
        handle.keep(context);
    }

    /**
     * Changes an option for all parameters, from the next step on. Every rank must set the same.
     *
     * @param key the option: "lr" for a schedule
     * @param value its new value; 1 and 0 for true and false
     */
    public void set(String key, double value) {
        inContext(() -> ddp.ddp_optimizer_set(handle, -1, key, value));
    }

    /**
     * The same for one parameter.
     *
     * @param parameter a parameter of the context
     * @param key the option: "weight_decay" for a bias
     * @param value its new value; 1 and 0 for true and false
     */
    public void set(Parameter parameter, String key, double value) {
        int index = context.own(parameter);
        inContext(() -> ddp.ddp_optimizer_set(handle, index, key, value));
    }

    /** Updates the values from the means, after finalizeStep and on every rank. With shards, {@link
     * Context#publish} follows. */
    public void step() {
        step(1);
    }

    /**
     * The same with each mean multiplied.
     *
     * @param scale the factor: 1 / the scale of the loss, or that of a clipped norm; the same on
     *     every rank
     */
    public void step(double scale) {
        inContext(() -> ddp.ddp_optimizer_step(handle, scale));
    }

    /**
     * With shards: from the next step on, updates each bucket in the step as soon as its means are
     * there, and sends the values. {@link #step()} and {@link Context#publish} are not called then;
     * {@link Context#awaitValue} gives the new values.
     *
     * @param scale as in {@link #step(double)}
     */
    public void inStep(double scale) {
        inContext(() -> ddp.ddp_optimizer_in_step(handle, scale));
    }

    /**
     * {@return this rank's state, in the order of parameters, for {@link Context#saveShards} and
     * {@link Context#loadShards}} The keys are "momentum_buffer", "exp_avg", "exp_avg_sq", "master"
     * and "step", which has one number: the count of updates. A program may read and write the
     * numbers between steps. Their memory stays as long as a buffer over it.
     */
    public List<ShardArray> state() {
        boolean[] owned = new boolean[context.parameters().size()];
        for (Piece each : context.pieces()) owned[each.parameter().index()] = !each.replicated();
        List<ShardArray> all = new ArrayList<>();
        long at = Handle.enter(handle); // it is not freed before a buffer keeps it
        try (ddp_optimizer_state found = new ddp_optimizer_state()) {
            int count = ddp.ddp_optimizer_state_count(handle);
            for (int i = 0; i < count; ++i) {
                ddp.ddp_optimizer_state_get(handle, i, found);
                String key = found.getName();
                ddp_device place = found.getDevice();
                Memory data = Memory.at(found.getData(), Dtype.of(found.getDtype()),
                        new long[] {found.getCount()}, handle,
                        new Device(Device.Type.of(place.getKind()), place.getIndex()));
                Parameter parameter = context.parameters().get(found.getParam());
                boolean replicated = key.equals("step") || !owned[parameter.index()];
                all.add(new ShardArray(key, parameter, found.getFirst(), replicated, data));
            }
        } finally {
            Handle.leave(handle, at);
        }
        return all;
    }

    // The context is not freed meanwhile.
    private void inContext(Runnable call) {
        long at = Handle.enter(context.handle);
        try {
            if (at == Handle.CLOSED)
                throw new IllegalStateException("the context of this optimizer is closed");
            call.run();
        } finally {
            Handle.leave(context.handle, at);
        }
    }

    /** Frees the optimizer, once no buffer over its state is left. The context stays open. */
    @Override
    public void close() {
        Handle.close(handle);
    }
}
