package org.libddp;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.Callable;

/**
 * An operation under way. It keeps its arrays alive, even if the work is forgotten or closed;
 * neither cancels the operation.
 *
 * <p>A wait ends when the operation has ended or its time is over. {@link Thread#interrupt} ends it
 * too, and breaks the group, except for a work of {@link #Work()}.
 */
public final class Work implements AutoCloseable {
    final Handle<Kind.ddp_work> handle;

    /** A work that the program finishes itself, with {@link #complete} or {@link #fail}. */
    public Work() {
        this((Duration) null);
    }

    /**
     * The same, with a bound.
     *
     * @param timeout after this time the work fails with {@link DdpException.Timeout}; null: 300 s
     */
    public Work(Duration timeout) {
        long[] made = new long[1];
        ddp.ddp_work_create(Ddp.milliseconds("timeout", timeout), made);
        handle = Handle.own(Kind.WORK, made[0]);
    }

    private Work(Handle<Kind.ddp_work> handle) {
        this.handle = handle;
    }

    /** A call of libddp's that makes a work: it is given the array in which the work comes back. */
    interface Start {
        void call(long[] work);
    }

    /**
     * Starts an operation. The objects that it uses are kept before it begins, so that no exception
     * in between can take it away. about: the object that the call is about, out of whose calls
     * exceptions of callbacks come.
     */
    static Work start(Handle<?> about, Start start, Object... kept) {
        Handle<Kind.ddp_work> handle = Handle.empty(Kind.WORK);
        handle.keep(kept);
        handle.shareRaised(
                Callback.runningRaised() != null ? Callback.runningRaised() : about.raisedOrNull());
        Work work = new Work(handle);
        long[] made = new long[1];
        start.call(made);
        handle.fill(made[0]);
        return work;
    }

    /**
     * Asks whether the operation has ended. Throws its error if it failed.
     *
     * @return false while it goes on
     */
    public boolean isDone() {
        int[] done = new int[1];
        handle.call(() -> ddp.ddp_work_test(handle, done));
        if (done[0] != 0) handle.ended();
        return done[0] != 0;
    }

    /** Waits for the end, as long as the group's timeout allows. Throws the operation's error if it
     * failed. */
    public void await() {
        handle.call(() -> ddp.ddp_work_wait(handle, 0));
        handle.ended();
    }

    /**
     * Waits for the end at most this long: then {@link DdpException.Timeout}, and the operation
     * goes on.
     *
     * @param timeout positive
     */
    public void await(Duration timeout) {
        long bound = Ddp.milliseconds("timeout", Objects.requireNonNull(timeout, "timeout"));
        handle.call(() -> ddp.ddp_work_wait(handle, bound));
        handle.ended();
    }

    /**
     * Calls the function after this work has ended without error, on a thread inside a libddp call.
     *
     * @param function it returns null, or a work that libddp takes over; the result throws its
     *     exceptions
     * @return a work that ends with the function, and with the work that it returned
     */
    public Work then(Callable<Work> function) {
        Objects.requireNonNull(function, "function");
        Callback callback = Callback.of(handle, function);
        return start(handle, made -> ddp.ddp_work_then(handle, callback, 0, made), handle);
    }

    /**
     * The same for a function that returns nothing.
     *
     * @param function the result throws its exceptions
     * @return a work that ends with the function
     */
    public Work then(Runnable function) {
        Objects.requireNonNull(function, "function");
        return then(() -> {
            function.run();
            return null;
        });
    }

    /** Finishes a work of {@link #Work()}. */
    public void complete() {
        ddp.ddp_work_complete(handle, ddp.DDP_OK, null);
    }

    /**
     * Fails a work of {@link #Work()}: waits on it throw {@link DdpException.CallbackFailed}.
     *
     * @param message the message of the exception; null: a general one
     */
    public void fail(String message) {
        ddp.ddp_work_complete(handle, ddp.DDP_ERROR_CALLBACK, message);
    }

    /** Frees the handle. The operation goes on. */
    @Override
    public void close() {
        Handle.close(handle);
    }
}
