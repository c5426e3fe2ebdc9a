package org.libddp;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.ref.Cleaner;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * An object of libddp's: of any opaque type, owned or borrowed. It is freed when it is closed or
 * collected, but never while a call in any thread still uses it, and what it keeps stays alive as
 * long as it does.
 */
final class Handle<K> {
    /** The value of {@link #enter} instead of an address: convert.h. */
    static final long CLOSED = -1;
    static final long EXPIRED = -2;

    private static final Cleaner CLEANER = Cleaner.create();

    /** Exceptions that callbacks threw, on their way to the call that they come out of. */
    private Queue<Throwable> raised;
    /** The object that callbacks belong to: found through the handle, which is alive during every
     * call. */
    Object owner;

    /** The handle of which this one is a part. */
    private Handle<?> whole;

    private final State state;

    private Handle(int kind, long pointer) {
        state = new State(kind, pointer);
    }

    /** Takes ownership. Null for 0. */
    static <K> Handle<K> own(int kind, long pointer) {
        if (pointer == 0) return null;
        Handle<K> made = new Handle<>(kind, pointer);
        CLEANER.register(made, made.state);
        return made;
    }

    /** For what is yet to be made; whatever happens, what it keeps is kept from now on. */
    static <K> Handle<K> empty(int kind) {
        Handle<K> made = new Handle<>(kind, 0);
        CLEANER.register(made, made.state);
        return made;
    }

    void fill(long pointer) {
        state.pointer = pointer;
    }

    static <K> Handle<K> borrowed(long pointer) {
        return pointer == 0 ? null : new Handle<>(Kind.BORROWED, pointer);
    }

    /** Part of another, which it keeps; usable as long as that is open, and never closed itself. */
    static <K> Handle<K> part(Handle<?> whole, long pointer) {
        Handle<K> made = borrowed(pointer);
        made.whole = whole;
        return made;
    }

    /** Keeps an object alive as long as this. */
    void keep(Object... objects) {
        state.keep(objects);
    }

    /** The same until another object is kept under this key. */
    void keepAs(Object key, Object object) {
        state.keepAs(key, object);
    }

    /** Its pointer is not freed while {@code of} is reachable, even if the handle is closed. */
    void keepWith(Object of) {
        long at = enter(this);
        CLEANER.register(of, () -> leave(this, at));
    }

    /** {@code of} has these bytes: frees them with it. */
    static void freeWith(Object of, long memory) {
        CLEANER.register(of, new State(Kind.MEMORY, memory));
    }

    // CALLS. Each is: at = enter(handle); try { ... at ... } finally { leave(handle, at); }

    /** The address, or 0 for null, CLOSED or EXPIRED. Never throws, so that leave can always
     * follow. */
    static long enter(Handle<?> handle) {
        if (handle == null) return 0;
        if (handle.whole == null) return handle.state.enter();
        long at = handle.whole.state.enter();
        return at == CLOSED ? CLOSED : handle.state.pointer;
    }

    static void leave(Handle<?> handle, long at) {
        if (at == 0 || at == CLOSED || at == EXPIRED) return;
        (handle.whole == null ? handle.state : handle.whole.state).leave();
    }

    static <K> long[] enterAll(List<Handle<K>> handles) {
        return handles.stream().mapToLong(Handle::enter).toArray();
    }

    static <K> void leaveAll(List<Handle<K>> handles, long[] at) {
        for (int i = 0; i < at.length; ++i) leave(handles.get(i), at[i]);
    }

    /** A call about this object: an exception of a callback of its comes out instead of libddp's.
     */
    void call(Runnable call) {
        try {
            call.run();
        } catch (DdpException e) {
            throw failure(e);
        }
    }

    /** The exception to throw for {@code error}. */
    RuntimeException failure(DdpException error) {
        Queue<Throwable> queue = raisedOrNull();
        Throwable first = queue == null ? null : queue.poll();
        if (first == null || first == error) return error;
        queue.clear();
        if (first instanceof RuntimeException unchecked) {
            unchecked.addSuppressed(error);
            return unchecked;
        }
        if (first instanceof Error serious) {
            serious.addSuppressed(error);
            throw serious;
        }
        error.initCause(first);
        return error;
    }

    // CLOSING

    boolean isOpen() {
        return whole == null ? state.isOpen() : whole.isOpen();
    }

    /** At once, or when the last call that uses it returns. Null is allowed. */
    static void close(Handle<?> handle) {
        if (handle != null && handle.whole == null) handle.state.close();
    }

    /** For a work: it has ended, so nothing uses the objects that it keeps. */
    void ended() {
        state.ended = true;
    }

    /** Passes ownership of the pointer to libddp; what is kept stays. 0: it is closed, or in use by
     * another thread. */
    long giveAway() {
        return state.giveAway();
    }

    // CALLBACKS

    synchronized Queue<Throwable> raised() {
        if (raised == null) raised = new ConcurrentLinkedQueue<>();
        return raised;
    }

    synchronized Queue<Throwable> raisedOrNull() {
        return raised;
    }

    /** Exceptions of works that are made in callbacks, or from others, come out of either. */
    synchronized void shareRaised(Queue<Throwable> queue) {
        raised = queue;
    }

    Lent lent() {
        return state.lent;
    }

    /**
     * well: all operations of the step have ended. Otherwise one may go on for a while. Then a
     * later step, or the end of the context, lets go of what it uses.
     */
    void endStep(boolean well) {
        if (well) {
            state.lent.drop();
        } else {
            state.lent.expire();
        }
        Queue<Throwable> queue = raisedOrNull();
        if (queue != null) queue.clear();
    }

    /** Handles that callbacks were lent, and works that they have passed on, which keep the arrays
     * of their operations.
     */
    static final class Lent {
        private final List<Handle<?>> handles = new ArrayList<>();
        /** The step of the bucket that a callback was lent last. */
        private long step = -1;

        synchronized void add(Handle<?> handle) {
            handles.add(handle);
        }

        /** A callback gets a bucket of this step: all operations of earlier ones have ended. */
        synchronized void enterStep(long now) {
            if (now > step) drop();
            step = now;
        }

        /** Makes the handles void that callbacks were lent. */
        synchronized void expire() {
            for (Handle<?> each : handles) {
                if (each.state.kind == Kind.BORROWED) each.state.close();
            }
        }

        synchronized void drop() {
            expire();
            handles.clear();
        }
    }

    /** Works that nobody holds any more, but that may still use arrays. */
    private static final Queue<State> UNFINISHED = new ConcurrentLinkedQueue<>();

    /** Frees those that have ended. Called where a collective starts, as it may run some. */
    static void sweep() {
        if (UNFINISHED.isEmpty()) return;
        List<State> before = new ArrayList<>();
        for (State each = UNFINISHED.poll(); each != null; each = UNFINISHED.poll())
            before.add(each);
        for (State each : before) {
            if (each.hasEnded()) {
                each.release();
            } else {
                UNFINISHED.add(each);
            }
        }
    }

    /** Knows nothing of the handle, and is alive until the pointer is freed: the cleaner holds it.
     */
    private static final class State implements Runnable {
        /** A value in {@code calls}: the handle is to be freed when the last call returns. */
        private static final int CLOSING = Integer.MIN_VALUE;
        private static final VarHandle CALLS;
        private static final VarHandle POINTER;

        static {
            try {
                CALLS = MethodHandles.lookup().findVarHandle(State.class, "calls", int.class);
                POINTER = MethodHandles.lookup().findVarHandle(State.class, "pointer", long.class);
            } catch (ReflectiveOperationException e) {
                throw new ExceptionInInitializerError(e);
            }
        }

        private final int kind;
        private volatile int calls;
        private volatile long pointer;
        private volatile boolean ended;
        private boolean unfinished;
        private final Map<Object, Object> kept = new HashMap<>();
        /** Here, as their arrays may be in use until the pointer has been freed. */
        private final Lent lent = new Lent();

        State(int kind, long pointer) {
            this.kind = kind;
            this.pointer = pointer;
        }

        synchronized void keep(Object... objects) {
            for (Object each : objects) {
                if (each != null) kept.put(new Object(), each);
            }
        }

        synchronized void keepAs(Object key, Object object) {
            kept.put(key, object);
        }

        boolean isOpen() {
            return calls >= 0;
        }

        long enter() {
            if ((int) CALLS.getAndAdd(this, 1) >= 0) return pointer;
            leave();
            return kind == Kind.BORROWED ? EXPIRED : CLOSED;
        }

        void leave() {
            if ((int) CALLS.getAndAdd(this, -1) == CLOSING + 1) free();
        }

        void close() {
            if ((int) CALLS.getAndBitwiseOr(this, CLOSING) == 0) free();
        }

        /** Synchronized with {@link #leaveToSweep}, so that only one of the two gets the pointer.
         */
        synchronized long giveAway() {
            if (!CALLS.compareAndSet(this, 0, CLOSING)) return 0;
            return (long) POINTER.getAndSet(this, 0L);
        }

        @Override
        public void run() {
            close();
        }

        private void free() {
            if (!leaveToSweep()) release();
        }

        /** Whether this is a work whose arrays may still be in use. It then belongs to {@link
         * #sweep}. */
        private synchronized boolean leaveToSweep() {
            if (!unfinished && kind == Kind.WORK && !ended && pointer != 0 && !kept.isEmpty()) {
                unfinished = true;
                UNFINISHED.add(this);
            }
            return unfinished;
        }

        /** Exactly once. */
        private void release() {
            long mine = (long) POINTER.getAndSet(this, 0L);
            if (mine == 0) return;
            if (kind != Kind.BORROWED) ddp.ddp_java_free(kind, mine);
            synchronized (this) {
                kept.clear();
            }
            lent.drop();
        }

        /** For a work that nobody else can use any more. */
        private boolean hasEnded() {
            int[] done = new int[1];
            try {
                ddpJNI.ddp_work_test(pointer, done);
                return done[0] != 0;
            } catch (RuntimeException e) {
                return true; // badly
            }
        }
    }
}
