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
 * <p>Collectives take direct buffers, from position to limit, or {@link Memory} to say how to read
 * a buffer. They use the memory in place. Every rank must call them in the same order. A collective
 * with a name in Async returns a {@link Work} at once; do not touch the arrays until the work has
 * ended. The others return when the operation is done. The group's timeout bounds every wait, and
 * {@link Thread#interrupt} ends one with {@link DdpException.Interrupted}.
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

    /**
     * Joins a group. Without ranks, meeting place and launcher it is a group of one. Collective.
     *
     * @param options how to join; the launcher's environment has the rest
     */
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
        closeAtExit(handle);
    }

    private Group(Handle<Kind.ddp_group> handle) {
        this.handle = handle;
    }

    private static Group of(long made) {
        Handle<Kind.ddp_group> handle = Handle.own(Kind.GROUP, made);
        closeAtExit(handle);
        return new Group(handle);
    }

    /** Closes it when the process ends, if it is still open. */
    static void closeAtExit(Handle<?> handle) {
        OPEN.add(handle);
    }

    /** The group that a callback is lent, or an elastic job's: not ours to close. */
    static Group lent(Handle<Kind.ddp_group> handle) {
        return new Group(handle);
    }

    /** {@return a group of this process only} */
    public static Group alone() {
        return new Group(new GroupOptions().rank(0).worldSize(1));
    }

    /**
     * Makes one group of several groups of the same ranks, and takes turns among them
     * (ddp_group_round_robin). Collective.
     *
     * @param groups 1 to 64, in the same order on every rank; the new group keeps them alive
     * @return the new group
     */
    public static Group roundRobin(List<Group> groups) {
        List<Handle<Kind.ddp_group>> handles = new ArrayList<>();
        for (Group each : groups) handles.add(each.handle);
        long[] made = new long[1];
        ddp.ddp_group_round_robin(handles, made);
        return of(made[0]);
    }

    /** {@return this process's rank, from 0} */
    public int rank() {
        return ddp.ddp_group_rank(handle);
    }

    /** {@return the number of ranks} */
    public int worldSize() {
        return ddp.ddp_group_world_size(handle);
    }

    /** {@return the backend's name; for a round robin group one for each of its groups: "shm,gloo"}
     */
    public String backend() {
        return ddp.ddp_group_backend(handle);
    }

    /**
     * A connection to the store that the ranks met in, for the program's own keys.
     *
     * @return a store that the caller closes; it may outlive the group
     */
    public Store store() {
        long[] made = new long[1];
        ddp.ddp_group_store(handle, made);
        return new Store(made[0]);
    }

    /**
     * Divides the group: ranks that give the same color form a new one, with the options of this.
     * Collective.
     *
     * @param color not negative; -1 joins none
     * @param key orders the ranks of a color; equal keys: by their rank in this group
     * @return the new group, which may outlive this one; null for color -1
     */
    public Group split(int color, int key) {
        long[] made = new long[1];
        ddp.ddp_group_split(handle, color, key, made);
        return made[0] == 0 ? null : of(made[0]);
    }

    /** Throws the error that broke the group, if it is broken. */
    public void check() {
        ddp.ddp_group_status(handle);
    }

    /**
     * Breaks the group on every rank.
     *
     * @param reason a text for the exceptions on all ranks; null: none
     */
    public void abort(String reason) {
        ddp.ddp_group_abort(handle, reason);
    }

    /**
     * Allocates memory of the CPU in which this group's collectives are fastest. It is freed with
     * the last buffer over it.
     *
     * @param dtype the type of its elements
     * @param shape its extents, the last of which is contiguous; less than 2 GiB in all
     * @return zeros, aligned to 64 bytes; they may outlive the group
     */
    public Memory alloc(Dtype dtype, long... shape) {
        long[] made = new long[1];
        long bytes = Math.multiplyExact(Memory.count(shape), dtype.size());
        Memory.requireBuffer(bytes); // before it is allocated
        ddp.ddp_mem_alloc(handle, bytes, made);
        return Memory.allocated(made[0], dtype, shape);
    }

    // COLLECTIVES

    /**
     * recv = op over the ranks of recv itself.
     *
     * @param recv a direct buffer with the same number of elements on every rank; all ranks get the
     *     same bits
     * @param op the operation over ranks
     */
    public void allreduce(Buffer recv, Op op) {
        allreduce(Memory.of("recv", recv, null), op);
    }

    /**
     * recv = op over the ranks of recv itself.
     *
     * @param recv the same number of elements on every rank; all ranks get the same bits
     * @param op the operation over ranks
     */
    public void allreduce(Memory recv, Op op) {
        reduceTo(null, recv, op, null);
    }

    /**
     * recv = op over the ranks of send.
     *
     * @param send as many elements as recv, of the same type, not overlapping it; null: recv itself
     * @param recv the same number of elements on every rank; all ranks get the same bits
     * @param op the operation over ranks
     */
    public void allreduce(Memory send, Memory recv, Op op) {
        reduceTo(send, recv, op, null);
    }

    /**
     * recv = op over the ranks of recv itself.
     *
     * @param recv a direct buffer with the same number of elements on every rank; all ranks get the
     *     same bits
     * @param op the operation over ranks
     * @return a work that ends with the operation; leave the memory alone until then
     */
    public Work allreduceAsync(Buffer recv, Op op) {
        return allreduceAsync(Memory.of("recv", recv, null), op);
    }

    /**
     * recv = op over the ranks of recv itself.
     *
     * @param recv the same number of elements on every rank; all ranks get the same bits
     * @param op the operation over ranks
     * @return a work that ends with the operation; leave the memory alone until then
     */
    public Work allreduceAsync(Memory recv, Op op) {
        return allreduceAsync(null, recv, op);
    }

    /**
     * recv = op over the ranks of send.
     *
     * @param send as many elements as recv, of the same type, not overlapping it; null: recv itself
     * @param recv the same number of elements on every rank; all ranks get the same bits
     * @param op the operation over ranks
     * @return a work that ends with the operation; leave the memory alone until then
     */
    public Work allreduceAsync(Memory send, Memory recv, Op op) {
        return Work.start(handle, work -> reduceTo(send, recv, op, work), send, recv);
    }

    /**
     * Sends the buffer of one rank to every rank, in place.
     *
     * @param buffer a direct buffer, with the same number of elements on every rank
     * @param root the rank that has the data
     */
    public void broadcast(Buffer buffer, int root) {
        broadcast(Memory.of("buffer", buffer, null), root);
    }

    /**
     * Sends the memory of one rank to every rank, in place.
     *
     * @param buffer the same number of elements on every rank
     * @param root the rank that has the data
     */
    public void broadcast(Memory buffer, int root) {
        send(buffer, root, null);
    }

    /**
     * Sends the memory of one rank to every rank, in place.
     *
     * @param buffer the same number of elements on every rank
     * @param root the rank that has the data
     * @return a work that ends with the operation; leave the memory alone until then
     */
    public Work broadcastAsync(Memory buffer, int root) {
        return Work.start(handle, work -> send(buffer, root, work), buffer);
    }

    /**
     * recv = the ranks' send, one after another.
     *
     * @param send a direct buffer with the same number of elements on every rank
     * @param recv a direct buffer with world size times as many
     */
    public void allgather(Buffer send, Buffer recv) {
        allgather(Memory.of("send", send, null), Memory.of("recv", recv, null));
    }

    /**
     * recv = the ranks' send, one after another.
     *
     * @param send the same number of elements on every rank; null: each rank's part is already in
     *     recv
     * @param recv world size times as many elements
     */
    public void allgather(Memory send, Memory recv) {
        gather(send, recv, null);
    }

    /**
     * recv = the ranks' send, one after another.
     *
     * @param send the same number of elements on every rank; null: each rank's part is already in
     *     recv
     * @param recv world size times as many elements
     * @return a work that ends with the operation; leave the memory alone until then
     */
    public Work allgatherAsync(Memory send, Memory recv) {
        return Work.start(handle, work -> gather(send, recv, work), send, recv);
    }

    /**
     * recv = this rank's part of op over the ranks of send.
     *
     * @param send a direct buffer with world size times as many elements as recv: a part for each
     *     rank
     * @param recv a direct buffer for this rank's part
     * @param op the operation over ranks
     */
    public void reduceScatter(Buffer send, Buffer recv, Op op) {
        reduceScatter(Memory.of("send", send, null), Memory.of("recv", recv, null), op);
    }

    /**
     * recv = this rank's part of op over the ranks of send.
     *
     * @param send world size times as many elements as recv: a part for each rank
     * @param recv for this rank's part
     * @param op the operation over ranks
     */
    public void reduceScatter(Memory send, Memory recv, Op op) {
        scatter(send, recv, op, null);
    }

    /**
     * recv = this rank's part of op over the ranks of send.
     *
     * @param send world size times as many elements as recv: a part for each rank
     * @param recv for this rank's part
     * @param op the operation over ranks
     * @return a work that ends with the operation; leave the memory alone until then
     */
    public Work reduceScatterAsync(Memory send, Memory recv, Op op) {
        return Work.start(handle, work -> scatter(send, recv, op, work), send, recv);
    }

    /**
     * recv = each rank's part of send for this rank.
     *
     * @param send a direct buffer with a part for each rank, of equal length
     * @param recv a direct buffer with as many elements: a part from each rank
     */
    public void allToAll(Buffer send, Buffer recv) {
        allToAll(Memory.of("send", send, null), Memory.of("recv", recv, null));
    }

    /**
     * recv = each rank's part of send for this rank.
     *
     * @param send a part for each rank, of equal length
     * @param recv as many elements: a part from each rank
     */
    public void allToAll(Memory send, Memory recv) {
        exchange(send, recv, null);
    }

    /**
     * recv = each rank's part of send for this rank.
     *
     * @param send a part for each rank, of equal length
     * @param recv as many elements: a part from each rank
     * @return a work that ends with the operation; leave the memory alone until then
     */
    public Work allToAllAsync(Memory send, Memory recv) {
        return Work.start(handle, work -> exchange(send, recv, work), send, recv);
    }

    /**
     * recv = each rank's part of send for this rank, with parts of different lengths.
     *
     * @param send a part for each rank, one after another
     * @param sendCounts how many elements each rank gets
     * @param recv a part from each rank, one after another
     * @param recvCounts how many elements each rank sends
     */
    public void allToAll(Memory send, long[] sendCounts, Memory recv, long[] recvCounts) {
        exchange(send, sendCounts, recv, recvCounts, null);
    }

    /**
     * recv = each rank's part of send for this rank, with parts of different lengths.
     *
     * @param send a part for each rank, one after another
     * @param sendCounts how many elements each rank gets
     * @param recv a part from each rank, one after another
     * @param recvCounts how many elements each rank sends
     * @return a work that ends with the operation; leave the memory alone until then
     */
    public Work allToAllAsync(Memory send, long[] sendCounts, Memory recv, long[] recvCounts) {
        return Work.start(
                handle, work -> exchange(send, sendCounts, recv, recvCounts, work), send, recv);
    }

    /** Returns when every rank has called it. */
    public void barrier() {
        Handle.sweep();
        ddp.ddp_barrier(handle, null);
    }

    /**
     * Starts a barrier.
     *
     * @return a work that ends when every rank has called this
     */
    public Work barrierAsync() {
        Handle.sweep();
        return Work.start(handle, work -> ddp.ddp_barrier(handle, work));
    }

    // Each with work null waits for the end inside the call. Arrays are reachable as long as it
    // lasts.

    private void reduceTo(Memory send, Memory recv, Op op, long[] work) {
        Handle.sweep();
        recv.writable("recv");
        if (send != null) send.typed("send", recv.dtype()).counted("send", recv.count());
        ddp.ddp_allreduce(handle, address(send), recv.address, recv.count(), recv.dtype().code,
                op.code, work);
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
        long part = partOf(recv);
        if (send != null) send.typed("send", recv.dtype()).counted("send", part);
        ddp.ddp_allgather(handle, address(send), recv.address, part, recv.dtype().code, work);
        Reference.reachabilityFence(send);
        Reference.reachabilityFence(recv);
    }

    private void scatter(Memory send, Memory recv, Op op, long[] work) {
        Handle.sweep();
        recv.writable("recv");
        send.typed("send", recv.dtype())
                .counted("send", Math.multiplyExact(recv.count(), worldSize()));
        ddp.ddp_reduce_scatter(
                handle, send.address, recv.address, recv.count(), recv.dtype().code, op.code, work);
        Reference.reachabilityFence(send);
        Reference.reachabilityFence(recv);
    }

    private void exchange(Memory send, Memory recv, long[] work) {
        Handle.sweep();
        long part = partOf(recv);
        send.typed("send", recv.dtype()).counted("send", recv.count());
        ddp.ddp_all_to_all(handle, send.address, recv.address, part, recv.dtype().code, work);
        Reference.reachabilityFence(send);
        Reference.reachabilityFence(recv);
    }

    private void exchange(
            Memory send, long[] sendCounts, Memory recv, long[] recvCounts, long[] work) {
        Handle.sweep();
        recv.writable("recv").counted("recv", sum("recvCounts", recvCounts));
        send.typed("send", recv.dtype()).counted("send", sum("sendCounts", sendCounts));
        ddp.ddp_all_to_allv(handle, send.address, recv.address,
                new long[][] {sendCounts, recvCounts}, recv.dtype().code, work);
        Reference.reachabilityFence(send);
        Reference.reachabilityFence(recv);
    }

    private static long sum(String what, long[] counts) {
        long sum = 0;
        for (long count : counts) {
            if (count < 0) throw new IllegalArgumentException(what + ": " + count + " is negative");
            sum = Math.addExact(sum, count);
        }
        return sum;
    }

    /** {@return the elements of a rank's part of memory that is to be written} */
    private long partOf(Memory recv) {
        int world = worldSize();
        long part = recv.writable("recv").count() / world;
        if (part * world != recv.count()) {
            throw new IllegalArgumentException("recv: " + recv.count()
                    + " elements cannot be divided among " + world + " ranks");
        }
        return part;
    }

    private static long address(Memory memory) {
        return memory == null ? 0 : memory.address;
    }

    /** Leaves the group. Never waits for other ranks; contexts keep the group alive until they are
     * closed. */
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
