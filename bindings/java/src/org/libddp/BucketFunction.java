package org.libddp;

/** What {@link Context#hookThen} calls for each bucket that has been reduced. */
@FunctionalInterface
public interface BucketFunction {
    /**
     * Group and bucket are valid until the step ends. Every operation that it starts must have ended when it returns: libddp does
     * not wait for it.
     */
    void reduced(Group group, Bucket bucket) throws Exception;
}
