package org.libddp;

import java.util.Queue;
import java.util.concurrent.Callable;

/** A Java function that libddp calls, always on a thread that is inside a libddp call. */
abstract class Callback {
    private static final ThreadLocal<Queue<Throwable>> RUNNING = new ThreadLocal<>();

    private final String name;
    private final Queue<Throwable> raised;
    private final Handle.Lent lent;

    /**
     * name: what messages call it. about: the context or work that it belongs to, out of whose
     * calls its exceptions come.
     */
    Callback(String name, Handle<?> about) {
        this.name = name;
        raised = about.raised();
        lent = about.lent();
    }

    static Callback of(Handle<?> about, Callable<Work> function) {
        return new Callback("continuation " + function.getClass().getName(), about) {
            @Override
            Work call(long first, long second) throws Exception {
                return function.call();
            }
        };
    }

    /** While a callback runs on this thread: where exceptions of works that are made meanwhile go.
     */
    static Queue<Throwable> runningRaised() {
        return RUNNING.get();
    }

    /** Returns null, or a work that libddp takes over. The arguments are those that callbacks.h
     * names. */
    abstract Work call(long first, long second) throws Exception;

    /** Before the function is lent a bucket of this step. */
    void enterStep(long step) {
        lent.enterStep(step);
    }

    /** A handle for what the function is lent. */
    <K> Handle<K> lend(long pointer) {
        Handle<K> handle = Handle.borrowed(pointer);
        lent.add(handle);
        return handle;
    }

    /** The entry for C. out: the work that the function returned, and an error that tells what it
     * threw. */
    static void run(Callback callback, long first, long second, long[] out) {
        Queue<Throwable> outer = RUNNING.get();
        RUNNING.set(callback.raised);
        try {
            Work next = callback.call(first, second);
            if (next != null) out[0] = callback.passOn(next);
        } catch (Throwable thrown) { // it comes out of the call that this one is part of
            out[1] = callback.keep(thrown);
        } finally {
            if (outer == null) {
                RUNNING.remove();
            } else {
                RUNNING.set(outer);
            }
        }
    }

    /** The handle keeps the arrays of the operation alive until the step ends. */
    private long passOn(Work work) {
        lent.add(work.handle);
        long given = work.handle.giveAway();
        if (given == 0) {
            throw new IllegalStateException("the " + name
                    + " returned a Work that libddp has taken over before, that is closed, or"
                    + " that another thread waits for: each Work can be returned once; return one that nobody else uses, or null"
                    + " when all is done within the call");
        }
        return given;
    }

    private long keep(Throwable thrown) {
        raised.add(thrown);
        // An error of libddp's that came out of a call inside the function stays what it is.
        int status = thrown instanceof DdpException ? ((DdpException) thrown).status()
                                                    : ddp.DDP_ERROR_CALLBACK;
        String message = thrown.toString().replace('\0', ' ');
        return ddpJNI.ddp_error_create(status, Text.bytes("message", message));
    }
}
