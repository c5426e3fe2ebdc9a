package org.libddp;

import java.lang.ref.Reference;
import java.nio.Buffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.WeakHashMap;

/**
 * A set of ranks that communicate (ddp/group.h). Creating one waits until every rank has joined.
 *
 * <p>Collectives take direct buffers, from position to limit, or {@link Memory} to say how to read a buffer. They use
 * the memory in place. Every rank must call them in the same order. A collective with a name in Async returns a
 * {@link Work} at once; do not touch the arrays until the work has ended. The others return when the operation is done. The
 * group's timeout bounds every wait, and {@link Thread#interrupt} ends one with {@link DdpException.Interrupted}.
 *
 * <p>Threads: any. Closing takes effect when the calls of other threads on the group have returned.
 */
public final class Group implements AutoCloseable {
    /** For those that are open when the process ends; by identity of the handle. */
    private static final Set<Handle<?>> OPEN =
            Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap<>()));

    static {
        // Tells the other ranks that this one ends, so that they need not find out.
        Runtime.getRuntime().addShutdownHook(
                new Thread(() -> new ArrayList<>(OPEN).forEach(Handle::close), "libddp-leave"));
    }

    final Handle<Kind.ddp_group> handle;

    /** The group of the launcher's environment; without a launcher, a group of one. */
    public Group() {
        this(new GroupOptions());
    }

    /** Joins a group. Without ranks, meeting place and launcher it is a group of one. */
    public Group(GroupOptions options) {
        Store store = options.store();
        long[] made = new long[1];
        long at = store == null ? 0 : Handle.enter(store.handle); // the options hold its address
        try (ddp_group_options given = new ddp_group_options()) {
            options.fill(given);
            if (store != null) given.setStore(store.handle);
            ddp.ddp_group_create(given, made);
        } finally {
            if (store != null) Handle.leave(store.handle, at);
        }
        handle = Handle.own(Kind.GROUP, made[0]);
        handle.keep(store);
        OPEN.add(handle);
    }

    private Group(Handle<Kind.ddp_group> handle) {
        this.handle = handle;
    }

    private static Group of(long made) {
        Handle<Kind.ddp_group> handle = Handle.own(Kind.GROUP, made);
        OPEN.add(handle);
        return new Group(handle);
    }

    /** The group that a callback is lent. */
    static Group lent(Handle<Kind.ddp_group> handle) {
        return new Group(handle);
    }

    /** A group of this process only. */
    public static Group alone() {
        return new Group(new GroupOptions().rank(0).worldSize(1));
    }

    /**
     * Makes one group of several groups of the same ranks, and takes turns among them (ddp_group_round_robin).
     * Collective.
     */
    public static Group roundRobin(List<Group> groups) {
        List<Handle<Kind.ddp_group>> handles = new ArrayList<>();
        for (Group each : groups) handles.add(each.handle);
        long[] made = new long[1];
        ddp.ddp_group_round_robin(handles, made);
        return of(made[0]);
    }

    /** This process's rank. */
    public int rank() {
        return ddp.ddp_group_rank(handle);
    }

    /** The number of ranks. */
    public int worldSize() {
        return ddp.ddp_group_world_size(handle);
    }

    /** The backend's name. */
    public String backend() {
        return ddp.ddp_group_backend(handle);
    }

    /** A connection to the store that the ranks met in, which may outlive the group. */
    public Store store() {
        long[] made = new long[1];
        ddp.ddp_group_store(handle, made);
        return new Store(made[0]);
    }

    /** Ranks that give the same color form a group, ordered by key, then by rank. -1 joins none: null. Collective. */
    public Group split(int color, int key) {
        long[] made = new long[1];
        ddp.ddp_group_split(handle, color, key, made);
        return made[0] == 0 ? null : of(made[0]);
    }

    /** Throws the error that broke the group, if it is broken. */
    public void check() {
        ddp.ddp_group_status(handle);
    }

    /** Breaks the group on every rank. */
    public void abort(String reason) {
        ddp.ddp_group_abort(handle, reason);
    }

    /** Memory in which this group's collectives are fastest, zeroed. It is freed with the last buffer over it. */
    public Memory alloc(Dtype dtype, long... shape) {
        long[] made = new long[1];
        ddp.ddp_mem_alloc(handle, Math.multiplyExact(Memory.count(shape), dtype.size()), made);
        return Memory.allocated(made[0], dtype, shape);
    }

    // COLLECTIVES

    /** recv = op over the ranks of recv itself. */
    public void allreduce(Buffer recv, Op op) {
        allreduce(Memory.of("recv", recv, null), op);
    }

    /** recv = op over the ranks of recv itself. */
    public void allreduce(Memory recv, Op op) {
        reduceTo(null, recv, op, null);
    }

    /** recv = op over the ranks of send. */
    public void allreduce(Memory send, Memory recv, Op op) {
        reduceTo(send, recv, op, null);
    }

    /** recv = op over the ranks of recv itself. */
    public Work allreduceAsync(Buffer recv, Op op) {
        return allreduceAsync(Memory.of("recv", recv, null), op);
    }

    /** recv = op over the ranks of recv itself. */
    public Work allreduceAsync(Memory recv, Op op) {
        return allreduceAsync(null, recv, op);
    }

    /** recv = op over the ranks of send. */
    public Work allreduceAsync(Memory send, Memory recv, Op op) {
        return Work.start(handle, work -> reduceTo(send, recv, op, work), send, recv);
    }

    /** buffer of rank root to every rank. */
    public void broadcast(Buffer buffer, int root) {
        broadcast(Memory.of("buffer", buffer, null), root);
    }

    /** buffer of rank root to every rank. */
    public void broadcast(Memory buffer, int root) {
        send(buffer, root, null);
    }

    /** buffer of rank root to every rank. */
    public Work broadcastAsync(Memory buffer, int root) {
        return Work.start(handle, work -> send(buffer, root, work), buffer);
    }

    /** recv = the ranks' send, one after another. */
    public void allgather(Buffer send, Buffer recv) {
        allgather(Memory.of("send", send, null), Memory.of("recv", recv, null));
    }

    /** recv = the ranks' send, one after another; null: each rank's part is already in recv. */
    public void allgather(Memory send, Memory recv) {
        gather(send, recv, null);
    }

    /** recv = the ranks' send, one after another; null: each rank's part is already in recv. */
    public Work allgatherAsync(Memory send, Memory recv) {
        return Work.start(handle, work -> gather(send, recv, work), send, recv);
    }

    /** recv = this rank's part of op over the ranks of send. */
    public void reduceScatter(Buffer send, Buffer recv, Op op) {
        reduceScatter(Memory.of("send", send, null), Memory.of("recv", recv, null), op);
    }

    /** recv = this rank's part of op over the ranks of send. */
    public void reduceScatter(Memory send, Memory recv, Op op) {
        scatter(send, recv, op, null);
    }

    /** recv = this rank's part of op over the ranks of send. */
    public Work reduceScatterAsync(Memory send, Memory recv, Op op) {
        return Work.start(handle, work -> scatter(send, recv, op, work), send, recv);
    }

    /** Returns when every rank has called it. */
    public void barrier() {
        Handle.sweep();
        ddp.ddp_barrier(handle, null);
    }

    /** Done when every rank has called it. */
    public Work barrierAsync() {
        Handle.sweep();
        return Work.start(handle, work -> ddp.ddp_barrier(handle, work));
    }

    // Each with work null waits for the end inside the call. Arrays are reachable as long as it lasts.

    private void reduceTo(Memory send, Memory recv, Op op, long[] work) {
        Handle.sweep();
        recv.writable("recv");
        if (send != null) send.typed("send", recv.dtype()).counted("send", recv.count());
        ddp.ddp_allreduce(handle, address(send), recv.address, recv.count(), recv.dtype().code, op.code, work);
        Reference.reachabilityFence(send);
        Reference.reachabilityFence(recv);
    }

    private void send(Memory buffer, int root, long[] work) {
        Handle.sweep();
        buffer.writable("buffer");
        ddp.ddp_broadcast(handle, buffer.address, buffer.count(), buffer.dtype().code, root, work);
        Reference.reachabilityFence(buffer);
    }

    private void gather(Memory send, Memory recv, long[] work) {
        Handle.sweep();
        int world = worldSize();
        long part = recv.writable("recv").count() / world;
        if (part * world != recv.count()) {
            throw new IllegalArgumentException(
                    "recv: " + recv.count() + " elements cannot be divided among " + world + " ranks");
        }
        if (send != null) send.typed("send", recv.dtype()).counted("send", part);
        ddp.ddp_allgather(handle, address(send), recv.address, part, recv.dtype().code, work);
        Reference.reachabilityFence(send);
        Reference.reachabilityFence(recv);
    }

    private void scatter(Memory send, Memory recv, Op op, long[] work) {
        Handle.sweep();
        recv.writable("recv");
        send.typed("send", recv.dtype()).counted("send", Math.multiplyExact(recv.count(), worldSize()));
        ddp.ddp_reduce_scatter(handle, send.address, recv.address, recv.count(), recv.dtype().code, op.code, work);
        Reference.reachabilityFence(send);
        Reference.reachabilityFence(recv);
    }

    private static long address(Memory memory) {
        return memory == null ? 0 : memory.address;
    }

    /** Leaves the group. Never waits for other ranks; contexts keep the group alive until they are closed. */
    @Override
    public void close() {
        OPEN.remove(handle);
        Handle.close(handle);
    }

    @Override
    public String toString() {
        if (!handle.isOpen()) return "Group, closed";
        return "Group, rank " + rank() + " of " + worldSize() + ", " + backend();
    }
}
