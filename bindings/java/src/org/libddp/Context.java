package org.libddp;

import java.lang.ref.Reference;
import java.nio.Buffer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;

/**
 * A model's parameters, and the averaging of their gradients over ranks (ddp/context.h): register
 * parameters, commit, and in each step announce gradients and finalize. {@link Hooks} has the
 * methods for communication hooks.
 *
 * <p>Threads: one at a time, except gradReady, put and similar calls: any thread, at once for
 * different parameters. The group's timeout bounds every wait, and {@link Thread#interrupt} ends
 * one with {@link DdpException.Interrupted}. The call in which a hook throws an exception throws it
 * again, {@link #finalizeStep} at the latest.
 */
public final class Context extends Hooks implements AutoCloseable {
    private final List<Parameter> parameters = new ArrayList<>();
    boolean hasFirstValues; // of parameters, and the program keeps the others

    /**
     * A context with the default options.
     *
     * @param group the ranks to communicate with; the context keeps the group alive, even after it
     *     is closed
     */
    public Context(Group group) {
        this(group, new ContextOptions());
    }

    /**
     * A context on a group.
     *
     * @param group the ranks to communicate with; the context keeps the group alive, even after it
     *     is closed
     * @param options the same on every rank
     */
    public Context(Group group, ContextOptions options) {
        super(create(group, options));
        handle.keepAs("group", group);
    }

    private static long create(Group group, ContextOptions options) {
        long[] made = new long[1];
        try (ddp_context_options given = new ddp_context_options()) {
            options.fill(given);
            ddp.ddp_context_create(group.handle, given, made);
        }
        return made[0];
    }

    // REGISTRATION

    /**
     * Adds a parameter whose gradient lives in its bucket: {@link #gradView} or {@link #put}. Call
     * it in the order of the forward pass, before {@link #commit}.
     *
     * @param name 1 to 1,024 bytes in UTF-8, unique in the context, the same on every rank
     * @param data a direct buffer with its value, which commit overwrites with rank 0's; the
     *     context keeps the buffer. null: the value is not sent
     * @param shape its extents, the last of which is contiguous; without any: one, as long as data
     * @return the parameter, under the next index
     */
    public Parameter register(String name, Buffer data, long... shape) {
        return register(name, data, null, shape);
    }

    /**
     * Adds a parameter. Call it in the order of the forward pass, before {@link #commit}.
     *
     * @param name 1 to 1,024 bytes in UTF-8, unique in the context, the same on every rank
     * @param data a direct buffer with its value, which commit overwrites with rank 0's; the
     *     context keeps the buffer. null: the value is not sent
     * @param grad a direct buffer for its gradient, which finalizeStep overwrites with the mean;
     *     the context keeps the buffer. null: the gradient lives in its bucket
     * @param shape its extents, the last of which is contiguous; without any: one, as long as data
     *     or grad
     * @return the parameter, under the next index
     */
    public Parameter register(String name, Buffer data, Buffer grad, long... shape) {
        ParameterBuilder builder = parameter(name).data(data).grad(grad);
        return shape.length == 0 ? builder.register() : builder.shape(shape).register();
    }

    /**
     * Describes a parameter with more properties: {@code parameter("embedding").shape(1000,
     * 64).sparse().register()}.
     *
     * @param name 1 to 1,024 bytes in UTF-8, unique in the context, the same on every rank
     * @return a description, of which {@link ParameterBuilder#register} makes a parameter
     */
    public ParameterBuilder parameter(String name) {
        return new ParameterBuilder(this, name);
    }

    /**
     * Adds state that is not trained, such as running means: rank 0's is sent to every rank.
     *
     * @param name 1 to 1,024 bytes in UTF-8, unique in the context, the same on every rank
     * @param data a direct buffer, which the context keeps
     */
    public void registerBuffer(String name, Buffer data) {
        addBuffer(parameter(name).data(data).registerBuffer());
    }

    /**
     * The same for memory that need not be of the CPU.
     *
     * @param name 1 to 1,024 bytes in UTF-8, unique in the context, the same on every rank
     * @param data the state, which the context keeps
     */
    public void registerBuffer(String name, Memory data) {
        addBuffer(parameter(name).data(data).registerBuffer());
    }

    Parameter add(Parameter parameter) {
        parameters.add(parameter);
        return parameter;
    }

    /** {@return an unmodifiable view of the registered parameters, by index} */
    @Override
    public List<Parameter> parameters() {
        return Collections.unmodifiableList(parameters);
    }

    /** Ends registration: ranks compare their parameters, and rank 0's values go to everyone.
     * Collective. */
    public void commit() {
        handle.call(() -> ddp.ddp_commit(handle));
    }

    // A STEP

    /** Starts a step, before the forward pass. Views may move here. Collective. */
    public void stepBegin() {
        handle.call(() -> ddp.ddp_step_begin(handle));
    }

    /**
     * Says that this step's gradient of the parameter is complete. Until finalizeStep returns it
     * must not be touched.
     *
     * @param parameter a parameter of this context, and not sparse
     */
    public void gradReady(Parameter parameter) {
        gradReady(own(parameter));
    }

    /**
     * The same by index: the call that a step makes most often.
     *
     * @param index {@link Parameter#index}
     */
    public void gradReady(int index) {
        try {
            ddp.ddp_grad_ready(handle, index);
        } catch (DdpException e) {
            throw handle.failure(e);
        }
    }

    /**
     * Copies a gradient to its place (the registered grad, or the view), and announces it.
     *
     * @param parameter a parameter of this context, on the CPU
     * @param grad a direct buffer with the parameter's type and number of elements; not used after
     *     the call
     */
    public void put(Parameter parameter, Buffer grad) {
        put(parameter, grad, false);
    }

    /**
     * The same, or adds to the gradient.
     *
     * @param parameter a parameter of this context, on the CPU
     * @param grad a direct buffer with the parameter's type and number of elements; not used after
     *     the call
     * @param add true: adds to what was put since the last synced step, in steps without sync and
     *     for a parameter with several uses. false: replaces that
     */
    public void put(Parameter parameter, Buffer grad, boolean add) {
        int index = own(parameter);
        String what = parameter.name() + ": grad";
        Memory source = Memory.of(what, grad, parameter.gradDtype());
        if (!parameter.device().isCpu()) {
            throw new IllegalArgumentException("parameter: " + parameter + " is on "
                    + parameter.device()
                    + ", and put copies memory of the CPU; give memory there to putOn");
        }
        source.counted(what, Memory.count(parameter.shape()));
        handle.call(() -> ddp.ddp_put(handle, index, source.address, add ? ddp.DDP_PUT_ADD : 0));
        Reference.reachabilityFence(source);
    }

    /**
     * Announces a gradient that is zero except in some rows. Both buffers are copied.
     *
     * @param parameter sparse, of shape [rows, ...]
     * @param indices a direct buffer of I64: row numbers, from 0; repeated ones add up
     * @param values a direct buffer of the parameter's type: one row for each index, row after row
     */
    public void gradReadySparse(Parameter parameter, Buffer indices, Buffer values) {
        int index = own(parameter);
        Memory rows = Memory.of(parameter.name() + ": indices", indices, Dtype.I64);
        long width = Memory.count(parameter.shape()) / Math.max(1, parameter.shape()[0]);
        String what = parameter.name() + ": values";
        Memory each =
                Memory.of(what, values, parameter.gradDtype()).counted(what, rows.count() * width);
        handle.call(()
                            -> ddp.ddp_grad_ready_sparse(
                                    handle, index, rows.address, each.address, rows.count()));
        Reference.reachabilityFence(rows);
        Reference.reachabilityFence(each);
    }

    /**
     * Announces a gradient that is the product left^T right, an n x m matrix. Both buffers are
     * copied.
     *
     * @param parameter factored, of shape [n, ...]; m is the product of its other extents
     * @param left a direct buffer of the parameter's type: a rows x n matrix, row after row, with
     *     any number of rows
     * @param right a direct buffer of the parameter's type: a rows x m matrix, row after row
     */
    public void gradReadyFactors(Parameter parameter, Buffer left, Buffer right) {
        int index = own(parameter);
        long n = parameter.shape()[0];
        long m = Memory.count(parameter.shape()) / Math.max(1, n);
        String[] whats = {parameter.name() + ": left", parameter.name() + ": right"};
        Memory a = Memory.of(whats[0], left, parameter.gradDtype());
        long rows = n == 0 ? 0 : a.count() / n;
        a.counted(whats[0], rows * n);
        Memory b = Memory.of(whats[1], right, parameter.gradDtype()).counted(whats[1], rows * m);
        handle.call(() -> ddp.ddp_grad_ready_factors(handle, index, a.address, b.address, rows));
        Reference.reachabilityFence(a);
        Reference.reachabilityFence(b);
    }

    /** The end of the backward pass: waits until every gradient is the mean over ranks. Collective.
     */
    public void finalizeStep() {
        endingStep(() -> ddp.ddp_finalize(handle));
    }

    /** The same without waiting: {@link #awaitParameter} and {@link #finalizeStep} follow.
     * Collective. */
    public void finalizeAsync() {
        handle.call(() -> ddp.ddp_finalize_async(handle));
    }

    /**
     * Waits until this gradient is final, between finalizeAsync and finalizeStep.
     *
     * @param parameter a parameter of this context
     */
    public void awaitParameter(Parameter parameter) {
        int index = own(parameter);
        handle.call(() -> ddp.ddp_wait_param(handle, index));
    }

    /** Ends a step that went wrong, on every rank; nothing is written back. Collective. */
    public void discard() {
        endingStep(() -> ddp.ddp_step_discard(handle));
    }

    private void endingStep(Runnable call) {
        boolean well = false;
        try {
            handle.call(call);
            well = true;
        } finally {
            handle.endStep(well);
        }
    }

    /**
     * Says whether the following steps communicate. Call it between steps; all ranks give the same.
     *
     * @param sync false: the steps do not communicate, and the next synced step reduces the sums
     */
    public void setSync(boolean sync) {
        if (!sync && hasFirstValues) {
            throw new IllegalStateException("noSync: a mean that does not communicate is this "
                    + "rank's own, and not in the next one. Add gradients up, and call mean() of "
                    + "the sum");
        }
        ddp.ddp_set_sync(handle, sync ? 1 : 0);
    }

    /** The result of {@link #noSync}: closing it ends the part that does not communicate. */
    public interface NoSync extends AutoCloseable {
        /** Switches communication on again, for the steps that follow. */
        @Override void close();
    }

    /**
     * {@code try (Context.NoSync apart = context.noSync()) { ... }}: steps in here do not
     * communicate; the program adds up.
     *
     * @return an object that switches communication on again when it is closed
     */
    public NoSync noSync() {
        setSync(false);
        return () -> setSync(true);
    }

    // ON DEVICES. A stream is the number that its handle is: a cudaStream_t as a long; 0: the
    // legacy default stream.

    /**
     * Sets the stream of this device for calls that take none: commit, stepBegin, gradReady. At
     * first it is the legacy default stream. It must live until another is set or the context is
     * closed.
     *
     * @param device a GPU
     * @param stream the stream's handle as a number; 0: the legacy default stream
     */
    public void setStream(Device device, long stream) {
        ddp.ddp_set_stream(handle, device.type().code, device.index(), stream);
    }

    /**
     * gradReady for a parameter on a device: its gradient is complete when the stream reaches this
     * point.
     *
     * @param parameter a parameter of this context
     * @param stream the stream's handle as a number; 0: the legacy default stream. It must live
     *     until the step ends. Ignored for a parameter on the CPU
     */
    public void gradReadyOn(Parameter parameter, long stream) {
        int index = own(parameter);
        handle.call(() -> ddp.ddp_grad_ready_on(handle, index, stream));
    }

    /**
     * put for a parameter on a device: copies a gradient from memory there, in the order of the
     * stream, and announces it. The memory may be written again on the stream afterwards.
     *
     * @param parameter a parameter of this context
     * @param grad memory of the parameter's device, with its type and number of elements
     * @param stream the stream's handle as a number; 0: the legacy default stream. Ignored for a
     *     parameter on the CPU
     */
    public void putOn(Parameter parameter, Memory grad, long stream) {
        int index = own(parameter);
        alike(parameter, "grad", grad);
        handle.call(() -> ddp.ddp_put_on(handle, index, grad.address, 0, stream));
        Reference.reachabilityFence(grad);
    }

    /**
     * Copies a gradient from its place to other memory of its device, in the order of the stream,
     * between steps: after finalizeOn the mean.
     *
     * @param parameter a parameter of this context
     * @param memory memory of the parameter's device, with its type and number of elements
     * @param stream the stream's handle as a number; 0: the legacy default stream. Ignored for a
     *     parameter on the CPU
     */
    public void getOn(Parameter parameter, Memory memory, long stream) {
        int index = own(parameter);
        alike(parameter, "memory", memory);
        handle.call(() -> ddp.ddp_get_on(handle, index, memory.address, stream));
        Reference.reachabilityFence(memory);
    }

    private static void alike(Parameter parameter, String name, Memory memory) {
        String what = parameter.name() + ": " + name;
        if (memory.dtype() != parameter.gradDtype()) {
            throw new IllegalArgumentException(what + ": its type is " + memory.dtype() + ", but "
                    + parameter.gradDtype() + " is expected");
        }
        memory.counted(what, Memory.count(parameter.shape()));
    }

    /**
     * finalizeStep that does not wait for the device: what is enqueued on the stream afterwards
     * sees the mean. For parameters on one device, and perhaps on the CPU. Collective.
     *
     * @param stream the stream's handle as a number; 0: the legacy default stream
     */
    public void finalizeOn(long stream) {
        endingStep(() -> ddp.ddp_finalize_on(handle, stream));
    }

    /** The same for parameters on several devices, with the streams of {@link #setStream}.
     * Collective. */
    public void finalizeEnqueue() {
        endingStep(() -> ddp.ddp_finalize_enqueue(handle));
    }

    /**
     * awaitParameter that does not wait for the device: what is enqueued on the stream afterwards
     * sees this gradient. The program must order it before what the next step does with the
     * gradient.
     *
     * @param parameter a parameter of this context
     * @param stream the stream's handle as a number; 0: the legacy default stream. Ignored for a
     *     parameter on the CPU
     */
    public void awaitParameterOn(Parameter parameter, long stream) {
        int index = own(parameter);
        handle.call(() -> ddp.ddp_wait_param_on(handle, index, stream));
    }

    // GRADIENTS

    /**
     * The gradient's place in its bucket. Write the gradient there, and nothing is ever copied.
     * Valid until {@link #layoutGeneration} changes, in stepBegin. A buffer that is kept longer is
     * harmless, but no longer the gradient.
     *
     * @param parameter a parameter of this context, neither sparse nor ignored
     * @return libddp's memory, aligned to 64 bytes, and zero at first; with {@link
     *     ParameterBuilder#inPlace}, the registered grad
     */
    public Memory gradView(Parameter parameter) {
        long[] view = new long[1];
        Handle<Kind.ddp_layout> held;
        do { // the layout that is held is the one that the view is in
            held = layout();
            ddp.ddp_grad_view(handle, own(parameter), view);
        } while (held != layout());
        return Memory.at(
                view[0], parameter.gradDtype(), parameter.shape(), held, parameter.device());
    }

    // SHARDS

    /**
     * Says who is to own a parameter, before {@link #commit} and alike on all ranks. At first each
     * rank owns a range of its elements.
     *
     * @param parameter a parameter of this context, which has {@link ContextOptions#shard}
     * @param owner who is to own it
     * @param cost with Owner.WHOLE, of an update, beside those of other such parameters: the most
     *     expensive goes first, to the rank that has least. 0: the number of elements
     */
    public void setOwner(Parameter parameter, Owner owner, double cost) {
        ddp.ddp_set_owner(handle, own(parameter), owner.code, cost);
    }

    /**
     * {@return what this rank owns, in the order of parameters: at most one piece of each. They
     * stay until {@link #setGroup}; buffers that are kept longer are harmless}
     */
    public List<Piece> pieces() {
        List<Piece> all = new ArrayList<>();
        try (ddp_piece found = new ddp_piece()) {
            for (int i = 0; i < ddp.ddp_piece_count(handle); ++i) {
                ddp.ddp_piece_get(handle, i, found);
                Parameter of = parameters.get(found.getParam());
                long first = found.getFirst();
                long count = found.getCount();
                Memory gradient = of.grad() == null ? gradView(of) : of.grad();
                all.add(new Piece(of, first, count, found.getReplicated() == 1,
                        of.data().range(first, count), gradient.range(first, count)));
            }
        }
        return all;
    }

    /** After the update, on every rank and in each synced step: sends the values of this rank's
     * pieces to the others. Gradients that live in buckets are gone. Collective. */
    public void publish() {
        handle.call(() -> ddp.ddp_publish(handle));
    }

    /**
     * Waits until the parameter has its new value on this rank.
     *
     * @param parameter a parameter of this context
     */
    public void awaitValue(Parameter parameter) {
        int index = own(parameter);
        handle.call(() -> ddp.ddp_wait_value(handle, index));
    }

    /**
     * Saves arrays as safetensors in a folder that all ranks see, from which any number of ranks
     * can load. Ranks may give different arrays, or none: all ranks together have each element
     * once. If it fails, the folder holds the save before. Collective.
     *
     * @param folder where; it is made if it is not there
     * @param arrays values and state: {@code ShardArray.of("value", piece, piece.value())} of each
     *     piece, and {@link Optimizer#state}
     * @param note a text that loadShards gives back, such as the step; alike on all ranks
     */
    public void saveShards(Path folder, Collection<ShardArray> arrays, String note) {
        name(arrays, false);
        ddp.ddp_shard_save(handle, folder.toString(), note);
        Reference.reachabilityFence(arrays);
    }

    /**
     * Fills arrays from what saveShards has saved, in any world. Values that are loaded reach all
     * ranks. Collective.
     *
     * @param folder the folder of saveShards
     * @param arrays those to fill
     * @return the note
     */
    public String loadShards(Path folder, Collection<ShardArray> arrays) {
        name(arrays, true);
        byte[][] note = new byte[1][];
        ddp.ddp_shard_load(handle, folder.toString(), note);
        Reference.reachabilityFence(arrays);
        return Text.of(note[0]);
    }

    /** For the next call. */
    void name(Collection<ShardArray> arrays, boolean written) {
        for (ShardArray each : arrays) { // first of all, as a call that fails has named some
            own(each.parameter());
            String what = each.key() + " of " + each.parameter().name();
            if (!each.data().device().isCpu())
                throw new IllegalArgumentException(
                        what + ": it is on " + each.data().device() + ", not on the CPU");
            if (written) each.data().writable(what);
        }
        for (ShardArray each : arrays) {
            Memory data = each.data();
            ddp.ddp_shard_array(handle, each.key(), each.parameter().index(), each.first(),
                    data.count(), data.dtype().code, data.address, each.replicated() ? 1 : 0);
        }
    }

    // NORMS

    /**
     * Asks for a norm of the reduced gradients of all parameters that are registered, in each
     * synced step. Call it before {@link #commit} and alike on all ranks.
     *
     * @param p 1, 2 or Double.POSITIVE_INFINITY
     * @return its number, for gradNorm and clipGradNorm
     */
    public int trackGradNorm(double p) {
        return trackGradNorm(p, parameters);
    }

    /**
     * The same of some parameters.
     *
     * @param p 1, 2 or Double.POSITIVE_INFINITY
     * @param of parameters of this context, each once, and at least one
     * @return its number, for gradNorm and clipGradNorm
     */
    public int trackGradNorm(double p, Collection<Parameter> of) {
        if (of.isEmpty())
            throw new IllegalArgumentException("trackGradNorm: there are no parameters");
        int[] norm = new int[1];
        ddp.ddp_track_grad_norm(handle, p, own(of), norm);
        return norm[0];
    }

    /**
     * {@return the norm in the last step, before clipping; the same on every rank}
     *
     * @param norm of trackGradNorm
     */
    public double gradNorm(int norm) {
        double[] value = new double[1];
        ddp.ddp_grad_norm(handle, norm, value);
        return value[0];
    }

    /**
     * Multiplies the gradients that the norm counts by min(1, maxNorm / (norm + 1e-6)), after
     * finalizeStep and alike on all ranks. A norm that is not finite throws {@link
     * DdpException.Nonfinite} on all ranks, and nothing is clipped.
     *
     * @param norm of trackGradNorm
     * @param maxNorm not negative
     * @return the norm before
     */
    public double clipGradNorm(int norm, double maxNorm) {
        double[] value = new double[1];
        ddp.ddp_clip_grad_norm(handle, norm, maxNorm, value);
        return value[0];
    }

    /**
     * {@return the number by which clipGradNorm would multiply, for {@link Optimizer#step(double)}}
     * That saves a pass over the gradients. Nothing changes. It throws what clipGradNorm throws.
     *
     * @param norm of trackGradNorm
     * @param maxNorm not negative
     */
    public double clipFactor(int norm, double maxNorm) {
        double[] factor = new double[1];
        ddp.ddp_clip_factor(handle, norm, maxNorm, factor);
        return factor[0];
    }

    /**
     * Casts votes of this rank, on any thread and at any time. They count in one step, the same on
     * all ranks: the first synced one whose last gradient comes after the call. The context needs
     * {@link ContextOptions#votes}.
     *
     * @param bits constants of {@link Votes}, joined by |
     */
    public void vote(long bits) {
        ddp.ddp_step_vote(handle, bits);
    }

    /**
     * Casts a number, of which the greatest of all ranks counts.
     *
     * @param level from 0 to 32
     */
    public void voteLevel(int level) {
        ddp.ddp_step_vote_level(handle, level);
    }

    /**
     * {@return the votes of the last step, after finalizeStep; the same on every rank} There are
     * none after an unsynced step.
     */
    public Votes votes() {
        long[] any = new long[1];
        long[] all = new long[1];
        int[] level = new int[1];
        ddp.ddp_step_votes(handle, any, all, level);
        return new Votes(any[0], all[0], level[0]);
    }

    /**
     * The reduced gradient of a sparse parameter: copies of its rows.
     *
     * @param indices the numbers of the rows, of I64, ascending, each once
     * @param values the rows in this order
     */
    public record Rows(Memory indices, Memory values) {}

    /**
     * {@return the reduced gradient of a sparse parameter: the rows that any rank gave; none before
     * the first reduction}
     *
     * @param parameter a parameter of this context, and sparse
     */
    public Rows sparseGradient(Parameter parameter) {
        long[] indices = new long[1];
        long[] values = new long[1];
        long[] count = new long[1];
        ddp.ddp_sparse_gradient(handle, own(parameter), indices, values, count);
        long[] shape = parameter.shape();
        shape[0] = count[0];
        return new Rows(Memory.copied(indices[0], Dtype.I64, new long[] {count[0]}),
                Memory.copied(values[0], parameter.gradDtype(), shape));
    }

    // WHO TAKES PART

    /**
     * Says early that these gradients will not come in this step, so that their buckets need not
     * wait. Needs {@link ContextOptions#findUnused}, or the first synced step of a {@link
     * ContextOptions#staticGraph}.
     *
     * @param unused parameters of this context that this rank did not announce
     */
    public void markUnused(Collection<Parameter> unused) {
        int[] indices = own(unused);
        handle.call(() -> ddp.ddp_mark_unused(handle, indices));
    }

    /**
     * {@return whether any rank used the parameter in the last synced step}
     *
     * @param parameter a parameter of this context
     */
    public boolean isUsed(Parameter parameter) {
        int[] used = new int[1];
        ddp.ddp_param_used(handle, own(parameter), used);
        return used[0] != 0;
    }

    /**
     * Freezes parameters, or thaws them. Every rank must freeze the same, between steps. Gradients
     * of frozen parameters are not expected, sent or touched.
     *
     * @param which parameters of this context
     * @param frozen false: thaws them
     */
    public void setFrozen(Collection<Parameter> which, boolean frozen) {
        ddp.ddp_set_frozen(handle, own(which), frozen ? 1 : 0);
    }

    /**
     * Says that these parameters take no part in the next step. Their gradients are not expected,
     * sent or touched.
     *
     * @param which parameters of this context
     * @param authority the rank whose choice counts, which makes the call collective; -1: every
     *     rank gives the same
     */
    public void skip(Collection<Parameter> which, int authority) {
        ddp.ddp_skip_params(handle, own(which), authority);
    }

    /**
     * {@return whether the parameter is skipped in the step under way or in the next one}
     *
     * @param parameter a parameter of this context
     */
    public boolean isSkipped(Parameter parameter) {
        return ddp.ddp_skipped(handle, own(parameter)) == 1;
    }

    /**
     * Sets this rank's weight in the weighted mean, before stepBegin, until it is changed. At first
     * it is 1.
     *
     * @param weight normally the number of samples in this rank's batch; 0 is allowed on some ranks
     */
    public void setWeight(double weight) {
        ddp.ddp_set_weight(handle, weight);
    }

    /**
     * Asks, before commit, for a share of a global batch, of which a fast rank takes more samples
     * than a slow one. Needs {@link Reduction#WEIGHTED_MEAN}.
     *
     * @param samples of the global batch of each step
     * @param multiple each share is a multiple of it
     * @param most the samples that fit this rank's memory; 0: no bound
     */
    public void shareBatch(long samples, long multiple, long most) {
        ddp.ddp_share_batch(handle, samples, multiple, most);
    }

    /**
     * {@return this rank's samples of the global batch} Those of the step that has begun, or,
     * between steps, of the next one. Give their number to setWeight before each stepBegin.
     */
    public BatchShare batchShare() {
        long[] begin = new long[1];
        long[] end = new long[1];
        ddp.ddp_batch_share(handle, begin, end);
        return new BatchShare(begin[0], end[0]);
    }

    /**
     * Gives the time that this rank itself has computed in the last step, instead of what libddp
     * measures between stepBegin and finalizeStep.
     *
     * @param time as the program has measured it
     */
    public void batchTime(Duration time) {
        ddp.ddp_batch_time(handle, time.toNanos());
    }

    /**
     * Call it instead of stepBegin when this rank has no more inputs. It takes part until all ranks
     * have joined. Collective.
     */
    public void join() {
        requireValues("join");
        endingStep(() -> ddp.ddp_join(handle));
    }

    // THE REST

    /**
     * Averages the values of all floating-point and complex parameters over a group, in place.
     * Collective.
     *
     * @param group null: the context's
     */
    public void averageParameters(Group group) {
        requireValues("averageParameters");
        ddp.ddp_average_parameters(handle, group == null ? null : group.handle);
    }

    /** Refuses what uses values of parameters, where the context has none. */
    void requireValues(String what) {
        if (hasFirstValues) {
            throw firstValues(what);
        }
    }

    static IllegalStateException firstValues(String what) {
        return new IllegalStateException(what
                + ": libddp has the first values of the parameters only, as the arrays of a "
                + "DataParallel are the program's. Use collectives of the group on them, or a "
                + "Context with direct buffers that the program updates in place");
    }

    /**
     * Continues in another group, between steps or after a failure. Values are not sent.
     * Collective.
     *
     * @param group the new group, of any size; the context keeps it alive
     */
    public void setGroup(Group group) {
        ddp.ddp_context_set_group(handle, group.handle);
        handle.keepAs("group", group);
        handle.endStep(false);
    }

    /**
     * Breaks the context and its group on every rank.
     *
     * @param reason a text for the exceptions on all ranks; null: none
     */
    public void abort(String reason) {
        ddp.ddp_context_abort(handle, reason);
    }

    /** Frees the context. Never waits for other ranks. Buffers over views stay readable. */
    @Override
    public void close() {
        handle.lent().expire();
        Handle.close(handle);
        dropLayout();
    }

    int own(Parameter parameter) {
        if (parameter.context() == this) return parameter.index();
        throw new IllegalArgumentException(
                "parameter: " + parameter + " belongs to another context");
    }

    private int[] own(Collection<Parameter> which) {
        return which.stream().mapToInt(this::own).toArray();
    }
}
