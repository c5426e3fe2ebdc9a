package org.libddp;

import java.nio.Buffer;

/** A parameter of a context: its index, and what was registered under it. */
public final class Parameter {
    private final Context context;
    private final int index;
    private final String name;
    private final long[] shape;
    private final Dtype dtype;
    private final Dtype gradDtype;
    private final Device device;
    private final Memory data;
    private final Memory grad;

    Parameter(Context context, int index, String name, long[] shape, Dtype dtype, Dtype gradDtype,
            Device device, Memory data, Memory grad) {
        this.context = context;
        this.index = index;
        this.name = name;
        this.shape = shape;
        this.dtype = dtype;
        this.gradDtype = gradDtype;
        this.device = device;
        this.data = data;
        this.grad = grad;
    }

    /** {@return its number in the order of registration, from 0} */
    public int index() {
        return index;
    }

    /** {@return its name in the context} */
    public String name() {
        return name;
    }

    /** {@return a copy of its extents, the last of which is contiguous} */
    public long[] shape() {
        return shape.clone();
    }

    /** {@return the type of its elements} */
    public Dtype dtype() {
        return dtype;
    }

    /** {@return the type of its gradient's elements} */
    public Dtype gradDtype() {
        return gradDtype;
    }

    /** {@return the device that its gradient lies on} */
    public Device device() {
        return device;
    }

    /** {@return its value, as registered; null if it was not given} */
    public Memory data() {
        return data;
    }

    /** {@return its gradient, as registered; null if it lives in its bucket} */
    public Memory grad() {
        return grad;
    }

    /** {@return {@link Context#gradView} of it} */
    public Memory view() {
        return context.gradView(this);
    }

    /** {@link Context#gradReady} of it. */
    public void ready() {
        context.gradReady(this);
    }

    /**
     * {@link Context#gradReadyOn} of it.
     *
     * @param stream the stream's handle as a number; 0: the legacy default stream. It must live
     *     until the step ends
     */
    public void readyOn(long stream) {
        context.gradReadyOn(this, stream);
    }

    /**
     * {@link Context#put} of it.
     *
     * @param gradient a direct buffer with as many elements; not used after the call
     */
    public void put(Buffer gradient) {
        context.put(this, gradient);
    }

    /**
     * The same, or adds to the gradient.
     *
     * @param gradient a direct buffer with as many elements; not used after the call
     * @param add true: adds to what was put since the last synced step; false: replaces it
     */
    public void put(Buffer gradient, boolean add) {
        context.put(this, gradient, add);
    }

    Context context() {
        return context;
    }

    @Override
    public String toString() {
        return "Parameter " + index + " " + name;
    }
}
