package org.libddp;

/** Called by {@link Context#hookThen} for each bucket that has been reduced. */
@FunctionalInterface
public interface BucketFunction {
    /**
     * Uses a bucket that has been reduced, while later ones still travel. Group and bucket are
     * valid until the step ends. The function's operations must end before it returns: libddp does
     * not wait for them.
     *
     * @param group the context's group; in a round robin group, the group of this bucket
     * @param bucket its buffer holds the result
     * @throws Exception if it fails: {@link Context#finalizeStep} throws the exception again, and
     *     the context breaks on every rank
     */
    void reduced(Group group, Bucket bucket) throws Exception;
}
