package org.libddp;

/** What {@link Context#hookThen} calls for each bucket that has been reduced. */
@FunctionalInterface
public interface BucketFunction {
    /**
     * Group and bucket are valid until the step ends. Its operations must end before it returns: libddp does not wait
     * for them.
     */
    void reduced(Group group, Bucket bucket) throws Exception;
}
