package org.libddp;

/** A communication hook (ddp/hook.h): what happens to a bucket of gradients between "ready" and
 * "reduced". */
@FunctionalInterface
public interface Hook {
    /**
     * Leaves in the bucket what every rank's gradients become, or starts the work that does. Each
     * work can be returned once, and may be of any group. Group and bucket are valid until the step
     * ends.
     *
     * @param group the context's group; in a round robin group, the group of this bucket
     * @param bucket with this rank's gradients, not divided by the world size
     * @return null if the result is there; otherwise a work that ends when it is there, and that
     *     libddp takes over
     * @throws Exception if it fails: {@link Context#finalizeStep} throws the exception again, at
     *     the latest, and the context breaks on every rank
     */
    Work reduce(Group group, Bucket bucket) throws Exception;
}
