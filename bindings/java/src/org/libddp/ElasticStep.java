package org.libddp;

/**
 * The facts of a step from {@link Elastic#begin}.
 *
 * @param step how many steps the job has applied; this is the next one
 * @param roster which roster trains, from 1
 * @param rank this rank in it
 * @param worldSize the number of ranks
 * @param changed whether the roster is new since the last begin; then views may have moved
 * @param joined if changed: how many of the ranks are new
 * @param left if changed: how many are gone
 * @param leaving whether this rank has announced that it leaves, and the others expect it now
 * @param fence greater than that of every roster before, also when the job begins anew: for names
 *     of checkpoints
 */
public record ElasticStep(long step, long roster, int rank, int worldSize, boolean changed,
        int joined, int left, boolean leaving, long fence) {}
