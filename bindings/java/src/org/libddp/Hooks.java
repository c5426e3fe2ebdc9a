package org.libddp;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.WeakHashMap;

/**
 * The methods of a {@link Context} for hooks (ddp/hook.h, builtin_hooks.h, overlap.h), buckets, plans and statistics.
 */
public abstract class Hooks {
    final Handle<Kind.ddp_context> handle;

    private final List<Memory> buffers = new ArrayList<>();
    /**
     * The user's functions, as long as C knows the callbacks. Those know the context weakly, so that a hook that refers to its
     * context makes a circle that the garbage collector sees.
     */
    private final Map<Callback, Adapter> functions = Collections.synchronizedMap(new WeakHashMap<>());
    /** The layout of a generation, for buffers over it. */
    private Handle<Kind.ddp_layout> layout;
    private long heldGeneration = -1;

    Hooks(long made) {
        handle = Handle.own(Kind.CONTEXT, made);
        handle.owner = this;
    }

    /** What was registered, by index. */
    public abstract List<Parameter> parameters();

    void addBuffer(Memory memory) {
        buffers.add(memory);
    }

    // LAYOUT

    /** Grows when views move. */
    public long layoutGeneration() {
        return ddp.ddp_layout_generation(handle);
    }

    synchronized Handle<Kind.ddp_layout> layout() {
        long generation = layoutGeneration();
        if (generation != heldGeneration) {
            long[] made = new long[1];
            ddp.ddp_layout_hold(handle, made);
            layout = Handle.own(Kind.LAYOUT, made[0]);
            heldGeneration = generation;
        }
        return layout;
    }

    synchronized void dropLayout() {
        layout = null;
        heldGeneration = -1;
    }

    // HOOKS

    /** Installs a hook; null: back to the default. Every rank must use the same. */
    public void setHook(Hook hook) {
        ddp.ddp_set_comm_hook(handle, hook == null ? null : callback("hook", hook, ofBuckets(hook)));
    }

    /** Installs a built-in hook: {@code useHook("powersgd", "rank=2,start=100")}. docs/hooks.md lists them. */
    public void useHook(String name, String options) {
        ddp.ddp_use_hook(handle, name, options);
    }

    /** Post-local SGD with the caller's own group; null: none. */
    public void useLocalSgd(long startStep, Group subgroup) {
        long at = subgroup == null ? 0 : Handle.enter(subgroup.handle); // the options hold its address
        try (ddp_local_sgd_options options = new ddp_local_sgd_options()) {
            options.setStart_step(startStep);
            if (subgroup != null) options.setSubgroup(subgroup.handle);
            ddp.ddp_use_local_sgd(handle, options);
        } finally {
            if (subgroup != null) Handle.leave(subgroup.handle, at);
        }
        if (subgroup != null) handle.keepAs("subgroup", subgroup);
    }

    /** Wraps the installed hook: it receives buckets cast to F16 or BF16. */
    public void compressHook(Dtype dtype) {
        ddp.ddp_compress_hook(handle, dtype.code);
    }

    /** Wraps the installed hook: the function is called after it has reduced a bucket. */
    public void hookThen(BucketFunction function) {
        Objects.requireNonNull(function, "function");
        Adapter adapter = ofBuckets((group, bucket) -> {
            function.reduced(group, bucket);
            return null;
        });
        ddp.ddp_hook_then(handle, callback("function of hookThen", function, adapter), 0);
    }

    /** The installed hook's name: "allreduce", "user", ... */
    public String hookName() {
        return ddp.ddp_hook_name(handle);
    }

    /** The state of this rank's hook, in the safetensors format. */
    public byte[] hookState() {
        byte[][] state = new byte[1][];
        ddp.ddp_hook_state_save(handle, state);
        return state[0];
    }

    /** Loads a saved state. sharedOnly: only what is the same on every rank, for another world size. */
    public void loadHookState(byte[] state, boolean sharedOnly) {
        ddp.ddp_hook_state_load(handle, state, sharedOnly ? ddp.DDP_HOOK_STATE_SHARED_ONLY : 0);
    }

    /** The hook runs instead of sending rank 0's buffers. null: back to the default. */
    public void setBufferHook(BufferHook hook) {
        Adapter adapter = (callback, group, unused) -> {
            hook.synchronize(Group.lent(callback.lend(group)), List.copyOf(buffers));
            return null;
        };
        ddp.ddp_set_buffer_hook(handle, hook == null ? null : callback("buffer hook", hook, adapter));
    }

    /** The function is called when a gradient is final. null: none. */
    public void setReducedFunction(ReducedFunction function) {
        Adapter adapter = (callback, param, used) -> {
            function.reduced(parameters().get((int) param), used != 0);
            return null;
        };
        ddp.ddp_set_reduced_callback(handle, function == null ? null : callback("reduced function", function, adapter));
    }

    /** From what C gives to what the user's function takes. It knows the context. */
    private interface Adapter {
        Work call(Callback callback, long first, long second) throws Exception;
    }

    private Adapter ofBuckets(Hook hook) {
        return (callback, group, bucket) -> {
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
                throw new IllegalStateException("the context of this callback is gone: keep it while its steps run");
            return ((Hooks) handle.owner).functions.get(this).call(this, first, second);
        }
    }

    // BUCKETS AND FIGURES

    /** The number of buckets; -1 before commit. */
    public int bucketCount() {
        return ddp.ddp_context_bucket_count(handle);
    }

    /** The bucket that a parameter is in. */
    public int parameterBucket(Parameter parameter) {
        return ddp.ddp_context_param_bucket(handle, parameter.index());
    }

    /** Bytes of gradients in a bucket. */
    public long bucketBytes(int bucket) {
        return ddp.ddp_context_bucket_bytes(handle, bucket);
    }

    /** Bytes of gradients in each bucket, now or (initial) when committed. */
    public long[] bucketSizes(boolean initial) {
        long[][] list = {new long[parameters().size()]};
        ddp.ddp_stats_bucket_sizes(handle, initial ? 1 : 0, list);
        return list[0];
    }

    /** The order in which gradients became ready when libddp last recorded it. */
    public List<Parameter> readyOrder() {
        int[][] list = {new int[parameters().size()]};
        ddp.ddp_stats_ready_order(handle, list);
        List<Parameter> order = new ArrayList<>();
        for (int each : list[0]) order.add(parameters().get(each));
        return order;
    }

    /** The parameter with this name. */
    public Parameter find(String name) {
        int[] found = new int[1];
        ddp.ddp_context_find_param(handle, name, found);
        return parameters().get(found[0]);
    }

    /** Records the ready order again in the next synced step, and rebuilds the buckets in this order. */
    public void requestRebuild() {
        ddp.ddp_request_rebuild(handle);
    }

    /** The bucket plan, as JSON. */
    public String plan() {
        byte[][] text = new byte[1][];
        ddp.ddp_plan_save(handle, text);
        return Text.of(text[0]);
    }

    /** Uses a saved plan. */
    public void adoptPlan(String plan) {
        ddp.ddp_plan_adopt(handle, plan);
    }

    /** What the context has done, and how long it took. */
    public Stats stats() {
        return Stats.of(handle);
    }
}
