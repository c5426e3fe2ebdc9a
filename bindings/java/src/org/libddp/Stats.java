package org.libddp;

/**
 * Statistics of a context (ddp/stats.h). Times are in nanoseconds: of the last synced step, and (total) of all synced
 * steps.
 */
public record Stats(long steps, long syncedSteps, long rebuilds, int paramCount, int bucketCount, int unusedParams,
        int unsentBuckets, long paramBytes, long unusedBytes, long sentBytes, long backwardNs, long commNs,
        long overlapNs, long waitNs, long totalBackwardNs, long totalCommNs, long totalOverlapNs, long totalWaitNs,
        int lastError, long hookBytesIn, long hookBytesOut, long copiedBytes) {
    static Stats of(Handle<Kind.ddp_context> context) {
        try (ddp_stats s = new ddp_stats()) {
            ddp.ddp_stats_get(context, s);
            return new Stats(s.getSteps(), s.getSynced_steps(), s.getRebuilds(), s.getParam_count(),
                    s.getBucket_count(), s.getUnused_params(), s.getUnsent_buckets(), s.getParam_bytes(),
                    s.getUnused_bytes(), s.getSent_bytes(), s.getBackward_ns(), s.getComm_ns(), s.getOverlap_ns(),
                    s.getWait_ns(), s.getTotal_backward_ns(), s.getTotal_comm_ns(), s.getTotal_overlap_ns(),
                    s.getTotal_wait_ns(), s.getLast_error(), s.getHook_bytes_in(), s.getHook_bytes_out(),
                    s.getCopied_bytes());
        }
    }
}
