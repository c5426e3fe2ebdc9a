package org.libddp;

import java.nio.Buffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The description of a parameter before it is registered: {@link Context#parameter}. */
public final class ParameterBuilder {
    private final Context context;
    private final String name;
    private Memory data;
    private Memory grad;
    private long[] shape;
    private Dtype dtype;
    private Dtype gradDtype;
    private Device device;
    private int flags;
    private int uses = 1;

    ParameterBuilder(Context context, String name) {
        this.context = context;
        this.name = name;
    }

    /**
     * Its value, which commit overwrites with rank 0's. Without, or null: it is not sent.
     *
     * @param value memory that the context keeps
     * @return this
     */
    public ParameterBuilder data(Memory value) {
        data = value;
        return this;
    }

    /**
     * Its value, which commit overwrites with rank 0's. Without, or null: it is not sent.
     *
     * @param value a direct buffer, which the context keeps
     * @return this
     */
    public ParameterBuilder data(Buffer value) {
        return data(value == null ? null : Memory.of(name + ": data", value, null));
    }

    /**
     * Where its gradient will be, which finalizeStep overwrites with the mean. Without, or null: it
     * lives in its bucket.
     *
     * @param value memory that the context keeps
     * @return this
     */
    public ParameterBuilder grad(Memory value) {
        grad = value;
        return this;
    }

    /**
     * Where its gradient will be, which finalizeStep overwrites with the mean. Without, or null: it
     * lives in its bucket.
     *
     * @param value a direct buffer, which the context keeps
     * @return this
     */
    public ParameterBuilder grad(Buffer value) {
        return grad(value == null ? null : Memory.of(name + ": grad", value, null));
    }

    /**
     * Its extents; else one, as long as data or grad.
     *
     * @param extents in elements, the last of which is contiguous; none: a scalar
     * @return this
     */
    public ParameterBuilder shape(long... extents) {
        shape = extents.clone();
        return this;
    }

    /**
     * The type of its elements; else that of data or grad, or F32.
     *
     * @param value the same as that of data and grad, if they are given
     * @return this
     */
    public ParameterBuilder dtype(Dtype value) {
        dtype = value;
        return this;
    }

    /**
     * The type of its gradient's elements; else that of its own. F32 gradients of BF16 values are
     * summed in F32.
     *
     * @param value the same as that of grad, if it is given
     * @return this
     */
    public ParameterBuilder gradDtype(Dtype value) {
        gradDtype = value;
        return this;
    }

    /**
     * Where its gradient lies; else where data or grad are, or on the CPU.
     *
     * @param value the same as that of data and grad, if they are given
     * @return this
     */
    public ParameterBuilder device(Device value) {
        device = value;
        return this;
    }

    /**
     * libddp leaves it and its gradient alone.
     *
     * @return this
     */
    public ParameterBuilder ignored() {
        flags |= ddp.DDP_PARAM_IGNORED;
        return this;
    }

    /**
     * Reduced after all others, in buckets of its own.
     *
     * @return this
     */
    public ParameterBuilder delayed() {
        flags |= ddp.DDP_PARAM_DELAYED;
        return this;
    }

    /**
     * Its gradient is a set of rows: {@link Context#gradReadySparse}. There is no grad, and at
     * least one extent.
     *
     * @return this
     */
    public ParameterBuilder sparse() {
        flags |= ddp.DDP_PARAM_SPARSE;
        return this;
    }

    /**
     * Its gradient may be given as factors: {@link Context#gradReadyFactors}. It is F32 or F64,
     * with at least one extent.
     *
     * @return this
     */
    public ParameterBuilder factored() {
        flags |= ddp.DDP_PARAM_FACTORED;
        return this;
    }

    /**
     * The gradient is reduced in grad, and not copied (ddp/in_place.h).
     *
     * @return this
     */
    public ParameterBuilder inPlace() {
        flags |= ddp.DDP_PARAM_IN_PLACE;
        return this;
    }

    /**
     * How often gradReady is called for the parameter in each step.
     *
     * @param value once for each layer that shares it; 0 means 1, the default
     * @return this
     */
    public ParameterBuilder uses(int value) {
        if (value < 0) throw new IllegalArgumentException("uses: " + value + " is negative");
        uses = value;
        return this;
    }

    /**
     * Adds it to the context. Call it in the order of the forward pass, before {@link
     * Context#commit}.
     *
     * @return the parameter, under the next index
     */
    public Parameter register() {
        int index = register(ddp::ddp_register_param);
        return context.add(
                new Parameter(context, index, name, shape, dtype, gradDtype, device, data, grad));
    }

    /**
     * Adds the n slices of a tensor of shape [n, ...], such as a weight that all layers keep in one
     * array: slice i, called "name[i]", is a parameter of its own.
     *
     * @return the slices, under the next n indices
     */
    public List<Parameter> registerSlices() {
        int first = register(ddp::ddp_register_slices);
        long[] extents = Arrays.copyOfRange(shape, 1, shape.length);
        List<Parameter> slices = new ArrayList<>();
        for (int i = 0; i < shape[0]; i++) {
            Memory value = data == null ? null : data.slice(i);
            Memory gradient = grad == null ? null : grad.slice(i);
            slices.add(context.add(new Parameter(context, first + i, name + "[" + i + "]", extents,
                    dtype, gradDtype, device, value, gradient)));
        }
        return slices;
    }

    /** A function of C that adds what is described, and gives the index. */
    private interface Registration {
        void call(Handle<Kind.ddp_context> context, ddp_param_desc desc, int[] index);
    }

    private int register(Registration function) {
        settle();
        context.handle.keep(data, grad); // before C knows them
        int[] index = new int[1];
        try (ddp_param_desc desc = new ddp_param_desc()) {
            describe(desc);
            desc.setGrad(grad == null ? 0 : grad.address);
            desc.setGrad_dtype(gradDtype.code);
            desc.setFlags(flags);
            desc.setUses(uses);
            function.call(context.handle, desc, index);
        }
        if ((flags & ddp.DDP_PARAM_IN_PLACE) != 0 && grad != null) context.inPlace.add(grad);
        return index[0];
    }

    /** Adds it as a buffer: state that is not trained. */
    Memory registerBuffer() {
        settle();
        context.handle.keep(data);
        try (ddp_param_desc desc = new ddp_param_desc()) {
            describe(desc);
            ddp.ddp_register_buffer(context.handle, desc);
        }
        return data;
    }

    /** Fills in what follows from the rest, and compares. */
    private void settle() {
        Memory known = data != null ? data : grad;
        if (known == null && shape == null) {
            throw new IllegalArgumentException(name + ": say what it is, with data, grad or shape");
        }
        if (shape == null) shape = known.shape();
        if (dtype == null) dtype = known == null ? Dtype.F32 : known.dtype();
        if (gradDtype == null) gradDtype = dtype;
        if (data != null) data = fitting(name + ": data", data, dtype);
        if (grad != null) grad = fitting(name + ": grad", grad, gradDtype);
        placed(data);
        placed(grad);
        if (device == null) device = Device.CPU;
    }

    private Memory fitting(String what, Memory memory, Dtype type) {
        return memory.writable(what).typed(what, type).shaped(what, shape);
    }

    private void placed(Memory memory) {
        if (memory == null) return;
        if (device == null) device = memory.device();
        if (!device.equals(memory.device())) {
            throw new IllegalArgumentException(name + ": data, grad and device are on " + device
                    + " and " + memory.device() + "; they must be in one place");
        }
    }

    private void describe(ddp_param_desc desc) {
        desc.setName(Text.checked("name", name));
        desc.set_shape(shape);
        desc.setDtype(dtype.code);
        desc.getDevice().setKind(device.type().code);
        desc.getDevice().setIndex(device.index());
        desc.setData(data == null ? 0 : data.address);
    }
}
