package org.libddp;

import java.nio.Buffer;
import java.util.ArrayList;
import java.util.List;

/**
 * A bucket of gradients on its way, valid until the step ends.
 *
 * <p>A {@link Hook} leaves in it what every rank's gradients become: the mean, if {@link #op} is
 * {@link Op#AVG}.
 */
public final class Bucket {
    private final Handle<Kind.ddp_bucket> handle;
    private final Context context;

    /**
     * One parameter's gradient inside a bucket.
     *
     * @param parameter the gradient's parameter; {@code parameter.data()} is its value
     * @param memory the gradient, inside {@link Bucket#buffer}
     */
    public record Gradient(Parameter parameter, Memory memory) {}

    Bucket(Handle<Kind.ddp_bucket> handle, Context context) {
        this.handle = handle;
        this.context = context;
    }

    /** {@return the place in launch order, from 0} */
    public int index() {
        return ddp.ddp_bucket_index(handle);
    }

    /** {@return whether it is the last bucket of the step} */
    public boolean isLast() {
        return ddp.ddp_bucket_is_last(handle) == 1;
    }

    /** {@return the number of synced steps before this one} */
    public long step() {
        return ddp.ddp_bucket_step(handle);
    }

    /** {@return the type of its elements} */
    public Dtype dtype() {
        return Dtype.of(ddp.ddp_bucket_dtype(handle));
    }

    /** {@return the operation to apply over ranks: AVG, or SUM with {@link Reduction#SUM}} */
    public Op op() {
        return Op.of(ddp.ddp_bucket_op(handle));
    }

    /** {@return the device in whose memory it lies} */
    public Device device() {
        try (ddp_device device = ddp.ddp_bucket_device(handle)) {
            return new Device(Device.Type.of(device.getKind()), device.getIndex());
        }
    }

    /**
     * For a bucket on a GPU: the gradients are there in the order of this stream, and the result
     * must be too.
     *
     * @return the stream's handle; 0 for a bucket of the CPU
     */
    public long stream() {
        return ddp.ddp_bucket_stream(handle);
    }

    /**
     * All gradients as one flat array. The gaps between them are zero, and must hold finite values
     * afterwards. Gradients of {@link ParameterBuilder#inPlace} have no gaps.
     *
     * @return this rank's gradients, not divided by the world size
     */
    public Memory buffer() {
        long[] shape = {ddp.ddp_bucket_count(handle)};
        return Memory.at(ddp.ddp_bucket_buffer(handle), dtype(), shape, context.layout(), device());
    }

    /** {@return each parameter's gradient, inside {@link #buffer}} */
    public List<Gradient> gradients() {
        List<Gradient> all = new ArrayList<>();
        for (int i = 0; i < ddp.ddp_bucket_param_count(handle); ++i) all.add(gradient(i));
        return all;
    }

    private Gradient gradient(int i) {
        try (ddp_tensor tensor = new ddp_tensor()) {
            ddp.ddp_bucket_gradient(handle, i, tensor);
            long[] shape = new long[tensor.getNdim()];
            for (int d = 0; d < shape.length; ++d) shape[d] = tensor.extent(d);
            Memory memory = Memory.at(tensor.getData(), Dtype.of(tensor.getDtype()), shape,
                    context.layout(), device());
            return new Gradient(context.parameters().get(tensor.getParam()), memory);
        }
    }

    /**
     * Says that the result is in this buffer: {@link #setBuffer(Memory)}.
     *
     * @param buffer direct, with as many elements as {@link #buffer}
     */
    public void setBuffer(Buffer buffer) {
        setBuffer(Memory.of("buffer", buffer, null));
    }

    /**
     * Says that the result is in this memory, not in the bucket's own. libddp converts it and
     * copies it into the gradients. It is kept until the hook is called for this bucket again.
     *
     * @param memory as many elements as {@link #buffer}, in the same layout and on the same device;
     *     they may be of another floating-point type
     */
    public void setBuffer(Memory memory) {
        memory.writable("buffer").counted("buffer", ddp.ddp_bucket_count(handle));
        int index = index();
        // if C refuses it, it goes on using the one before
        context.handle.keepAs("next " + index, memory);
        ddp.ddp_bucket_set_buffer(handle, memory.address, memory.dtype().code);
        context.handle.keepAs(index, memory);
    }
}
