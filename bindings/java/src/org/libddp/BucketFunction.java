package org.libddp;

/** What {@link Context#hookThen} calls for each bucket that has been reduced. */
@FunctionalInterface
public interface BucketFunction {
    /** Group and bucket are valid until the step ends. Operations end before it returns: libddp waits for no work of its. */
    void reduced(Group group, Bucket bucket) throws Exception;
}
