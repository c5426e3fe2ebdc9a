package org.libddp;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.WeakHashMap;

/**
 * The methods of a {@link Context} for hooks (ddp/hook.h, builtin_hooks.h, overlap.h), buckets,
 * plans and statistics.
 */
public abstract class Hooks {
    final Handle<Kind.ddp_context> handle;

    private final List<Memory> buffers = new ArrayList<>();
    /**
     * The user's functions, as long as C knows the callbacks. The callbacks know the context
     * weakly, so that a hook that refers to its context makes a circle that the garbage collector
     * sees.
     */
    private final Map<Callback, Adapter> functions =
            Collections.synchronizedMap(new WeakHashMap<>());
    /** The layout of a generation, for buffers over it. */
    private Handle<Kind.ddp_layout> layout;
    private long heldGeneration = -1;
    /** Gradients that are their own views. */
    final List<Memory> inPlace = new ArrayList<>();

    Hooks(long made) {
        handle = Handle.own(Kind.CONTEXT, made);
        handle.owner = this;
    }

    /** {@return an unmodifiable view of the registered parameters, by index} */
    public abstract List<Parameter> parameters();

    void addBuffer(Memory memory) {
        buffers.add(memory);
    }

    // LAYOUT

    /** {@return a number that grows when views move: in commit, stepBegin, setGroup and join} */
    public long layoutGeneration() {
        return ddp.ddp_layout_generation(handle);
    }

    synchronized Handle<Kind.ddp_layout> layout() {
        long generation = layoutGeneration();
        if (generation != heldGeneration) {
            long[] made = new long[1];
            ddp.ddp_layout_hold(handle, made);
            layout = Handle.own(Kind.LAYOUT, made[0]);
            layout.keep(inPlace.toArray());
            heldGeneration = generation;
        }
        return layout;
    }

    synchronized void dropLayout() {
        layout = null;
        heldGeneration = -1;
    }

    // HOOKS

    /**
     * Installs a hook, between steps. Every rank must use the same.
     *
     * @param hook called for each bucket of a synced step; null: back to the default
     */
    public void setHook(Hook hook) {
        ddp.ddp_set_comm_hook(
                handle, hook == null ? null : callback("hook", hook, ofBuckets(hook)));
    }

    /**
     * Installs a built-in hook, between steps: {@code useHook("powersgd", "rank=2,start=100")}.
     * Every rank must use the same.
     *
     * @param name a name from docs/hooks.md
     * @param options "key=value,key=value"; null: the defaults
     */
    public void useHook(String name, String options) {
        ddp.ddp_use_hook(handle, name, options);
    }

    /**
     * Wraps the installed hook: it receives buckets cast to a smaller type.
     *
     * @param dtype F16 or BF16
     */
    public void compressHook(Dtype dtype) {
        ddp.ddp_compress_hook(handle, dtype.code);
    }

    /**
     * Wraps the installed hook: the function is called after it has reduced a bucket.
     *
     * @param function called in the order of buckets; in a round robin group, in that of each of
     *     its groups
     */
    public void hookThen(BucketFunction function) {
        Objects.requireNonNull(function, "function");
        Adapter adapter = ofBuckets((group, bucket) -> {
            function.reduced(group, bucket);
            return null;
        });
        ddp.ddp_hook_then(handle, callback("function of hookThen", function, adapter), 0);
    }

    /** {@return the installed hook's name: "allreduce", "fp16(allreduce)", "user"} */
    public String hookName() {
        return ddp.ddp_hook_name(handle);
    }

    /**
     * The state of this rank's hook, between steps. Every rank must save its own.
     *
     * @return bytes in the safetensors format, in this machine's byte order
     */
    public byte[] hookState() {
        byte[][] state = new byte[1][];
        ddp.ddp_hook_state_save(handle, state);
        return state[0];
    }

    /**
     * Loads a saved state into a hook of the same name. Every rank must load between the same
     * steps.
     *
     * @param state the result of {@link #hookState}
     * @param sharedOnly true: only what is the same on every rank, for another world size
     */
    public void loadHookState(byte[] state, boolean sharedOnly) {
        ddp.ddp_hook_state_load(handle, state, sharedOnly ? ddp.DDP_HOOK_STATE_SHARED_ONLY : 0);
    }

    /**
     * Installs a hook that runs instead of sending rank 0's buffers. Every rank must use the same.
     *
     * @param hook called in stepBegin; null: back to the default
     */
    public void setBufferHook(BufferHook hook) {
        Adapter adapter = (callback, group, unused) -> {
            Handle<Kind.ddp_group> lent = Handle.borrowed(group);
            try {
                hook.synchronize(Group.lent(lent), List.copyOf(buffers));
            } finally {
                Handle.close(lent); // libddp has it only during the call
            }
            return null;
        };
        ddp.ddp_set_buffer_hook(
                handle, hook == null ? null : callback("buffer hook", hook, adapter));
    }

    /**
     * Installs, between steps, a function that is called when a gradient is final.
     *
     * @param function called once for each parameter and synced step; null: none
     */
    public void setReducedFunction(ReducedFunction function) {
        Adapter adapter = (callback, param, used) -> {
            function.reduced(parameters().get((int) param), used != 0);
            return null;
        };
        ddp.ddp_set_reduced_callback(
                handle, function == null ? null : callback("reduced function", function, adapter));
    }

    /** From what C gives to what the user's function takes. It knows the context. */
    private interface Adapter {
        Work call(Callback callback, long first, long second) throws Exception;
    }

    private Adapter ofBuckets(Hook hook) {
        return (callback, group, bucket) -> {
            callback.enterStep(ddpJNI.ddp_bucket_step(bucket));
            Bucket lent = new Bucket(callback.lend(bucket), (Context) this);
            return hook.reduce(Group.lent(callback.lend(group)), lent);
        };
    }

    private Callback callback(String what, Object function, Adapter adapter) {
        Callback callback = new OfContext(what + " " + function.getClass().getName(), handle);
        functions.put(callback, adapter);
        return callback;
    }

    /** Finds its context and function when it is called. */
    private static final class OfContext extends Callback {
        private final WeakReference<Handle<?>> reference;

        OfContext(String name, Handle<?> context) {
            super(name, context);
            reference = new WeakReference<>(context);
        }

        @Override
        Work call(long first, long second) throws Exception {
            Handle<?> handle = reference.get();
            if (handle == null)
                throw new IllegalStateException(
                        "the context of this callback is gone: keep it while its steps run");
            return ((Hooks) handle.owner).functions.get(this).call(this, first, second);
        }
    }

    // BUCKETS AND FIGURES

    /** {@return the number of buckets; -1 before commit} */
    public int bucketCount() {
        return ddp.ddp_context_bucket_count(handle);
    }

    /**
     * {@return the index of the bucket that a parameter is in; -1 before commit}
     *
     * @param parameter a parameter of this context
     */
    public int parameterBucket(Parameter parameter) {
        return ddp.ddp_context_param_bucket(handle, parameter.index());
    }

    /**
     * {@return the bytes of gradients in each bucket}
     *
     * @param initial true: of the plan that commit made; false: of the plan in use
     */
    public long[] bucketSizes(boolean initial) {
        long[][] list = {new long[parameters().size()]};
        ddp.ddp_stats_bucket_sizes(handle, initial ? 1 : 0, list);
        return list[0];
    }

    /** {@return the order in which this rank's gradients became ready when libddp last recorded it;
     * empty before} */
    public List<Parameter> readyOrder() {
        int[][] list = {new int[parameters().size()]};
        ddp.ddp_stats_ready_order(handle, list);
        List<Parameter> order = new ArrayList<>();
        for (int each : list[0]) order.add(parameters().get(each));
        return order;
    }

    /**
     * Records the ready order again in the next synced step, and rebuilds the buckets in this
     * order. Every rank must call it between the same steps.
     */
    public void requestRebuild() {
        ddp.ddp_request_rebuild(handle);
    }

    /** {@return the bucket plan as JSON: the names of the parameters of each bucket, in order} */
    public String plan() {
        byte[][] text = new byte[1][];
        ddp.ddp_plan_save(handle, text);
        return Text.of(text[0]);
    }

    /**
     * Uses a saved plan, instead of the first one and the rebuild after the first step. Every rank
     * must call it, before commit or between the same steps.
     *
     * @param plan the result of {@link #plan}, or JSON of the same form
     */
    public void adoptPlan(String plan) {
        ddp.ddp_plan_adopt(handle, plan);
    }

    /** {@return what the context has done, and how long it took} */
    public Stats stats() {
        return Stats.of(handle);
    }
}
