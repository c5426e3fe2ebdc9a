package org.libddp;

import java.nio.Buffer;
import java.util.ArrayList;
import java.util.List;

/**
 * A bucket of gradients on its way, valid until the step ends.
 *
 * <p>A {@link Hook} leaves in it what every rank's gradients become: the mean, if {@link #op} is {@link Op#AVG}.
 */
public final class Bucket {
    private final Handle<Kind.ddp_bucket> handle;
    private final Context context;

    /** One parameter's gradient inside a bucket; {@code parameter.data()} is its value. */
    public record Gradient(Parameter parameter, Memory memory) {}

    Bucket(Handle<Kind.ddp_bucket> handle, Context context) {
        this.handle = handle;
        this.context = context;
    }

    /** 0, 1, ... in launch order. */
    public int index() {
        return ddp.ddp_bucket_index(handle);
    }

    /** Whether it is the last of the step. */
    public boolean isLast() {
        return ddp.ddp_bucket_is_last(handle) == 1;
    }

    /** The number of synced steps before this one. */
    public long step() {
        return ddp.ddp_bucket_step(handle);
    }

    /** The type of its elements. */
    public Dtype dtype() {
        return Dtype.of(ddp.ddp_bucket_dtype(handle));
    }

    /** What to apply over ranks: AVG or SUM. */
    public Op op() {
        return Op.of(ddp.ddp_bucket_op(handle));
    }

    /** Where it lies. */
    public Device device() {
        try (ddp_device device = ddp.ddp_bucket_device(handle)) {
            return new Device(Device.Type.of(device.getKind()), device.getIndex());
        }
    }

    /** For a bucket on a GPU: the gradients are there in the order of this stream, and the result must be too. */
    public long stream() {
        return ddp.ddp_bucket_stream(handle);
    }

    /** All gradients as one flat array, with gaps of zeros. */
    public Memory buffer() {
        long[] shape = {ddp.ddp_bucket_count(handle)};
        return Memory.at(ddp.ddp_bucket_buffer(handle), dtype(), shape, context.layout(), device());
    }

    /** Each parameter's gradient. */
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
            Memory memory = Memory.at(tensor.getData(), Dtype.of(tensor.getDtype()), shape, context.layout(), device());
            return new Gradient(context.parameters().get(tensor.getParam()), memory);
        }
    }

    /** Says that the result is in this buffer: {@link #setBuffer(Memory)}. */
    public void setBuffer(Buffer buffer) {
        setBuffer(Memory.of("buffer", buffer, null));
    }

    /**
     * Says that the result is in this memory: as many elements, in the bucket's layout, perhaps of another floating-point type. It
     * is kept until the hook is called for this bucket again.
     */
    public void setBuffer(Memory memory) {
        memory.writable("buffer").counted("buffer", ddp.ddp_bucket_count(handle));
        int index = index();
        context.handle.keepAs("next " + index, memory); // if C refuses it, it goes on using the one before
        ddp.ddp_bucket_set_buffer(handle, memory.address, memory.dtype().code);
        context.handle.keepAs(index, memory);
    }
}
