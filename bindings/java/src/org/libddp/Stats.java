package org.libddp;

/**
 * Statistics of a context (ddp/stats.h). Times are in nanoseconds: of the last synced step that
 * ended, and (total) of all.
 *
 * @param steps how many steps ended
 * @param syncedSteps how many of these communicated
 * @param rebuilds how often libddp rebuilt the buckets
 * @param paramCount the number of parameters
 * @param bucketCount the number of buckets
 * @param unusedParams how many parameters no rank used in the last synced step; without ignored
 *     ones
 * @param unsentBuckets how many buckets were not sent in the last synced step, because no rank used
 *     them
 * @param paramBytes bytes of all gradients except ignored and sparse ones
 * @param unusedBytes how many of these bytes no rank used in the last synced step
 * @param sentBytes over all steps: bytes of sent buckets; of sparse and factored gradients, what
 *     this rank gave
 * @param backwardNs from the first announced gradient to finalizeStep or finalizeAsync
 * @param commNs while at least one bucket was on its way, from its launch to its end
 * @param overlapNs the part of commNs before finalizeStep or finalizeAsync
 * @param waitNs inside finalizeAsync, awaitParameter and finalizeStep
 * @param totalBackwardNs the sum of backwardNs over all synced steps
 * @param totalCommNs the sum of commNs over all synced steps
 * @param totalOverlapNs the sum of overlapNs over all synced steps
 * @param totalWaitNs the sum of waitNs over all synced steps
 * @param lastError the status of the last call in a step that failed; 0 if none failed
 * @param hookBytesIn since the hook was installed: bytes of gradients that it received
 * @param hookBytesOut since the hook was installed: bytes that this rank gave to collectives for
 *     them
 * @param copiedBytes bytes of gradients that were copied over all steps, between the program's
 *     memory and buckets, and by a shared-memory backend; 0 for views on one host
 * @param bucketCapBytes the cap that a rebuild uses, unless a plan was adopted
 * @param tuning whether libddp is still looking for it (autotune)
 * @param averagedBytes bytes that this rank gave to collectives for averages of parameters
 */
public record Stats(long steps, long syncedSteps, long rebuilds, int paramCount, int bucketCount,
        int unusedParams, int unsentBuckets, long paramBytes, long unusedBytes, long sentBytes,
        long backwardNs, long commNs, long overlapNs, long waitNs, long totalBackwardNs,
        long totalCommNs, long totalOverlapNs, long totalWaitNs, int lastError, long hookBytesIn,
        long hookBytesOut, long copiedBytes, long bucketCapBytes, boolean tuning,
        long averagedBytes) {
    static Stats of(Handle<Kind.ddp_context> context) {
        try (ddp_stats s = new ddp_stats()) {
            ddp.ddp_stats_get(context, s);
            return new Stats(s.getSteps(), s.getSynced_steps(), s.getRebuilds(), s.getParam_count(),
                    s.getBucket_count(), s.getUnused_params(), s.getUnsent_buckets(),
                    s.getParam_bytes(), s.getUnused_bytes(), s.getSent_bytes(), s.getBackward_ns(),
                    s.getComm_ns(), s.getOverlap_ns(), s.getWait_ns(), s.getTotal_backward_ns(),
                    s.getTotal_comm_ns(), s.getTotal_overlap_ns(), s.getTotal_wait_ns(),
                    s.getLast_error(), s.getHook_bytes_in(), s.getHook_bytes_out(),
                    s.getCopied_bytes(), s.getBucket_cap_bytes(), s.getTuning() != 0,
                    s.getAveraged_bytes());
        }
    }
}
