package org.libddp;

/** A communication hook (ddp/hook.h): what happens to a bucket of gradients between "ready" and "reduced". */
@FunctionalInterface
public interface Hook {
    /**
     * Leaves in the bucket what every rank's gradients become, and returns null; or returns a work that ends when the
     * result is there. Each work can be returned once, and may be of any group. Group and bucket are valid until the
     * step ends.
     */
    Work reduce(Group group, Bucket bucket) throws Exception;
}
