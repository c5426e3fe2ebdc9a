package org.libddp;

import java.util.List;

/** What runs instead of sending rank 0's buffers to everyone: {@link Context#setBufferHook}. */
@FunctionalInterface
public interface BufferHook {
    /**
     * buffers: in the order of registration. The group is valid during the call. The hook's operations must end before
     * it returns: libddp does not wait for them.
     */
    void synchronize(Group group, List<Memory> buffers) throws Exception;
}
