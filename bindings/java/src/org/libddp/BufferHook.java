package org.libddp;

import java.util.List;

/** Runs instead of sending rank 0's buffers to everyone: {@link Context#setBufferHook}. */
@FunctionalInterface
public interface BufferHook {
    /**
     * Makes the buffers of all ranks agree. The group is valid during the call. The hook's
     * operations must end before it returns: libddp does not wait for them.
     *
     * @param group the context's group
     * @param buffers in the order of registration; the hook writes the result into them
     * @throws Exception if it fails: {@link Context#stepBegin} throws the exception again, and the
     *     context breaks on every rank
     */
    void synchronize(Group group, List<Memory> buffers) throws Exception;
}
