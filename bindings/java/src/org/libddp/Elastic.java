package org.libddp;

import java.lang.ref.Reference;
import java.nio.Buffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

/**
 * A job that goes on without ranks that die, and takes in those that come (ddp/elastic.h). The
 * store must outlive all ranks.
 *
 * <p>Threads: one at a time. {@link Thread#interrupt} ends a wait with {@link
 * DdpException.Interrupted}.
 */
public final class Elastic implements AutoCloseable {
    private final Handle<Kind.ddp_elastic> handle;
    /** Not kept by the handle: contexts keep their group, and so the handle. Averagers keep their
     * context. */
    private final List<Context> contexts = new ArrayList<>();
    private final List<Averager> averagers = new ArrayList<>();

    /**
     * Joins nothing yet: that is the first {@link #begin}.
     *
     * @param options where ranks meet, and how many
     */
    public Elastic(ElasticOptions options) {
        Store store = options.group().store();
        long[] made = new long[1];
        long at = store == null ? 0 : Handle.enter(store.handle); // the options hold its address
        try (ddp_group_options group = new ddp_group_options();
                ddp_elastic_options given = new ddp_elastic_options()) {
            options.group().fill(group);
            if (store != null) group.setStore(store.handle);
            options.fill(given);
            given.set_group(group);
            ddp.ddp_elastic_create(given, made);
        } finally {
            if (store != null) Handle.leave(store.handle, at);
        }
        handle = Handle.own(Kind.ELASTIC, made[0]);
        handle.keep(store);
        Group.closeAtExit(handle);
    }

    /**
     * {@return the group of this roster; before the first {@link #begin} this rank alone, for
     * contexts. It follows the job from roster to roster, and closing it does nothing}
     */
    public Group group() {
        return Group.lent(ddp.ddp_elastic_group(handle));
    }

    /**
     * Adds a context, before the first {@link #begin}: it moves from roster to roster. Every rank
     * adds contexts with the same parameters, in the same order.
     *
     * @param context of {@link #group}, committed; it must stay open
     */
    public void addContext(Context context) {
        context.requireValues("addContext");
        ddp.ddp_elastic_add_context(handle, context.handle);
        contexts.add(context);
    }

    /**
     * Adds an averager with an outer optimizer, before the first {@link #begin}: ranks train apart,
     * and come and go after outer steps.
     *
     * @param averager of a context that was added; it must stay open
     */
    public void addAverager(Averager averager) {
        ddp.ddp_elastic_add_averager(handle, averager.handle);
        averagers.add(averager);
    }

    /**
     * Adds memory that belongs to the state, an optimizer's for example, before the first {@link
     * #begin}. Every rank adds the same names and sizes, in the same order.
     *
     * @param name unique in the job
     * @param state a direct buffer, from position to limit, which the job keeps
     */
    public void addState(String name, Buffer state) {
        addState(name, Memory.of("state", state, null));
    }

    /**
     * The same for a buffer that is read as elements of a type.
     *
     * @param name unique in the job
     * @param state of the CPU
     */
    public void addState(String name, Memory state) {
        if (!state.device().isCpu())
            throw new IllegalArgumentException("state: it must be memory of the CPU");
        long bytes = state.count() * state.dtype().size();
        ddp.ddp_elastic_add_state(handle, name, state.writable("state").address, bytes);
        handle.keep(state);
    }

    /**
     * This rank has loaded the state from a checkpoint, before the first {@link #begin}.
     *
     * @param step after how many steps; not negative
     */
    public void setStep(long step) {
        ddp.ddp_elastic_set_step(handle, step);
    }

    /**
     * Begins a step. Waits for the next roster, with the state of the job, if ranks were lost, come
     * or go. Collective.
     *
     * @return which step it is, and who trains
     */
    public ElasticStep begin() {
        try (ddp_elastic_step told = new ddp_elastic_step()) {
            withParts(() -> ddp.ddp_elastic_begin(handle, told));
            boolean changed = told.getChanged() != 0;
            if (changed) contexts.forEach(each -> each.handle.endStep(false));
            return new ElasticStep(told.getStep(), told.getRoster(), told.getRank(),
                    told.getWorld_size(), changed, told.getJoined(), told.getLeft(),
                    told.getLeaving() != 0, told.getFence());
        }
    }

    /** This rank has applied the step: once after each {@link #begin}, when every optimizer has
     * run. */
    public void commit() {
        withParts(() -> ddp.ddp_elastic_commit(handle));
    }

    /**
     * Asks the store whether this rank is a member of the newest roster, and throws if it is not:
     * between writing a checkpoint and renaming it. Put the fence into the file's name, too.
     */
    public void confirmMember() {
        withParts(() -> ddp.ddp_elastic_confirm_member(handle));
    }

    /**
     * On all ranks, for a context with shards: keeps the values and the arrays, the state after so
     * many steps, to which a change of the roster takes the job back. After {@link #commit}, or
     * after {@link #begin} where recallShards has found nothing.
     *
     * @param context of this job
     * @param arrays the state of all pieces, such as {@link Optimizer#state}, without values
     * @param step the steps that the job has applied
     * @param where here and at a neighbour, or in the program's checkpoint
     */
    public void keepShards(Context context, Collection<ShardArray> arrays, long step, Keep where) {
        context.name(arrays, false);
        withParts(() -> ddp.ddp_elastic_keep_shards(handle, context.handle, step, where.code));
        Reference.reachabilityFence(arrays);
    }

    /**
     * On all ranks, where {@link #begin} says changed: fills the arrays of the new pieces, and all
     * values, from what ranks have kept.
     *
     * @param context of this job
     * @param arrays those to fill
     * @return false: nothing was kept in memory, and nothing has changed here
     */
    public boolean recallShards(Context context, Collection<ShardArray> arrays) {
        context.name(arrays, true);
        int[] found = new int[1];
        withParts(() -> ddp.ddp_elastic_recall_shards(handle, context.handle, found));
        Reference.reachabilityFence(arrays);
        return found[0] != 0;
    }

    /** This rank will leave. Go on with steps until {@link #begin} says leaving. */
    public void announceLeave() {
        ddp.ddp_elastic_announce_leave(handle);
    }

    /** Leaves between two steps. Afterwards the job can only be closed. */
    public void leave() {
        withParts(() -> ddp.ddp_elastic_leave(handle));
    }

    /** No context and no averager is freed during the call. */
    private void withParts(Runnable call) {
        List<Handle<?>> parts = new ArrayList<>();
        contexts.forEach(each -> parts.add(each.handle));
        averagers.forEach(each -> parts.add(each.handle));
        long[] at = parts.stream().mapToLong(Handle::enter).toArray();
        try {
            for (int i = 0; i < at.length; ++i) {
                if (at[i] != Handle.CLOSED) continue;
                throw new IllegalStateException((i < contexts.size() ? "a context" : "an averager")
                        + " of this job is closed");
            }
            call.run();
        } finally {
            for (int i = 0; i < at.length; ++i) Handle.leave(parts.get(i), at[i]);
        }
    }

    /** Frees it. Without {@link #leave} before, the others take this rank for dead, and go on at
     * once. */
    @Override
    public void close() {
        Handle.close(handle);
    }
}
