package org.libddp;

import java.nio.Buffer;

/** A parameter of a context: its index, and what was registered under it. */
public final class Parameter {
    private final Context context;
    private final int index;
    private final String name;
    private final long[] shape;
    private final Dtype dtype;
    private final Device device;
    private final Memory data;
    private final Memory grad;

    Parameter(Context context, int index, String name, long[] shape, Dtype dtype, Device device, Memory data,
            Memory grad) {
        this.context = context;
        this.index = index;
        this.name = name;
        this.shape = shape;
        this.dtype = dtype;
        this.device = device;
        this.data = data;
        this.grad = grad;
    }

    /** Its number, in the order of registration. */
    public int index() {
        return index;
    }

    public String name() {
        return name;
    }

    /** Its extents, the last of which is contiguous. */
    public long[] shape() {
        return shape.clone();
    }

    public Dtype dtype() {
        return dtype;
    }

    /** Where its gradient lies. */
    public Device device() {
        return device;
    }

    /** Its value, as registered; null if it was not given. */
    public Memory data() {
        return data;
    }

    /** Its gradient, as registered; null if it lives in its bucket. */
    public Memory grad() {
        return grad;
    }

    /** {@link Context#gradView} of it. */
    public Memory view() {
        return context.gradView(this);
    }

    /** {@link Context#gradReady} of it. */
    public void ready() {
        context.gradReady(this);
    }

    /** {@link Context#gradReadyOn} of it. */
    public void readyOn(long stream) {
        context.gradReadyOn(this, stream);
    }

    /** {@link Context#put} of it. */
    public void put(Buffer gradient) {
        context.put(this, gradient);
    }

    /** The same; add: to what was put since the last synced step. */
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
