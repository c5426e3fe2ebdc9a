package org.libddp;

/** How a {@link Context} works; the same on every rank (ddp/context.h). */
public final class ContextOptions {
    private long bucketCap;
    private long firstBucketCap;
    private long[] bucketCaps = {};
    private Reduction reduction = Reduction.MEAN;
    private long rebuildInterval;
    private boolean rebuild = true;
    private boolean initialBroadcast = true;
    private boolean broadcastBuffers = true;
    private boolean findUnused;
    private boolean staticGraph;
    private boolean keepLocalUnused;
    private boolean skipUnusedBuckets;
    private boolean join;
    private boolean divideByPresent;
    private boolean stopAtFirstJoin;
    private boolean consensusOrder;
    private boolean accumulate;
    private boolean check;
    private long checkInterval;
    private boolean refuseNonfinite;
    private boolean skipNonfinite;
    long verifyInterval;
    private boolean verifyBuffers;
    private boolean autotune;
    private boolean shard;
    private boolean votes;

    /**
     * A bucket is closed once it holds at least this many bytes of gradients.
     *
     * @param value in bytes; 0, the default: 26,214,400, or 1,048,576 with the backend shm
     * @return this
     */
    public ContextOptions bucketCap(long value) {
        bucketCap = value;
        return this;
    }

    /**
     * The same for the first bucket of each type and device, which is small so that communication
     * starts early.
     *
     * @param value in bytes; 0, the default: 1,048,576, or bucketCap if that is smaller
     * @return this
     */
    public ContextOptions firstBucketCap(long value) {
        firstBucketCap = value;
        return this;
    }

    /**
     * Caps bucket by bucket, instead of the two.
     *
     * @param value in bytes; the last one repeats. None: the two caps hold
     * @return this
     */
    public ContextOptions bucketCaps(long... value) {
        bucketCaps = value.clone();
        return this;
    }

    /**
     * Sets the reduction of gradients.
     *
     * @param value {@link Reduction#MEAN} by default
     * @return this
     */
    public ContextOptions reduction(Reduction value) {
        reduction = value;
        return this;
    }

    /**
     * How often libddp records the ready order again, and rebuilds the buckets.
     *
     * @param value in synced steps; 0, the default: only after the first
     * @return this
     */
    public ContextOptions rebuildInterval(long value) {
        rebuildInterval = value;
        return this;
    }

    /**
     * Follow rank 0's ready order after the first step.
     *
     * @param value true by default; false: keep the first plan
     * @return this
     */
    public ContextOptions rebuild(boolean value) {
        rebuild = value;
        return this;
    }

    /**
     * {@link Context#commit} sends rank 0's values to everyone.
     *
     * @param value true by default; false: the program has made them equal
     * @return this
     */
    public ContextOptions initialBroadcast(boolean value) {
        initialBroadcast = value;
        return this;
    }

    /**
     * {@link Context#stepBegin} sends rank 0's buffers to everyone.
     *
     * @param value true by default
     * @return this
     */
    public ContextOptions broadcastBuffers(boolean value) {
        broadcastBuffers = value;
        return this;
    }

    /**
     * A gradient that is not announced counts as unused in this step, not as missing.
     *
     * @param value false by default; not together with staticGraph
     * @return this
     */
    public ContextOptions findUnused(boolean value) {
        findUnused = value;
        return this;
    }

    /**
     * The first synced step records which gradients are used, and every later step uses these.
     *
     * @param value false by default; not together with findUnused
     * @return this
     */
    public ContextOptions staticGraph(boolean value) {
        staticGraph = value;
        return this;
    }

    /**
     * A gradient that this rank did not use stays as it is.
     *
     * @param value false by default; needs findUnused or staticGraph
     * @return this
     */
    public ContextOptions keepLocalUnused(boolean value) {
        keepLocalUnused = value;
        return this;
    }

    /**
     * Buckets that no rank used are not sent: ranks agree on each bucket first.
     *
     * @param value false by default; needs findUnused
     * @return this
     */
    public ContextOptions skipUnusedBuckets(boolean value) {
        skipUnusedBuckets = value;
        return this;
    }

    /**
     * Ranks may run out of inputs before others: {@link Context#join}.
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions join(boolean value) {
        join = value;
        return this;
    }

    /**
     * The mean is over the ranks that still have inputs.
     *
     * @param value false by default; needs join, and a reduction that is not the sum
     * @return this
     */
    public ContextOptions divideByPresent(boolean value) {
        divideByPresent = value;
        return this;
    }

    /**
     * All ranks stop with {@link DdpException.UnevenInputs} as soon as one has no more inputs.
     *
     * @param value false by default; needs join
     * @return this
     */
    public ContextOptions stopAtFirstJoin(boolean value) {
        stopAtFirstJoin = value;
        return this;
    }

    /**
     * Rebuild buckets in the order of the mean over ranks, not in rank 0's.
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions consensusOrder(boolean value) {
        consensusOrder = value;
        return this;
    }

    /**
     * The program adds to gradients over several synced steps before it zeroes them: an unused
     * gradient counts with what it holds (DDP_CONTEXT_ACCUMULATE in ddp/participation.h).
     *
     * @param value false by default; needs findUnused or staticGraph
     * @return this
     */
    public ContextOptions accumulate(boolean value) {
        accumulate = value;
        return this;
    }

    /**
     * Finds mistakes that are otherwise silent (DDP_CONTEXT_CHECK in ddp/context.h). So does
     * DDP_DEBUG=check.
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions check(boolean value) {
        check = value;
        return this;
    }

    /**
     * With check: how often ranks compare the values of parameters.
     *
     * @param value in synced steps; 0, the default: 10. -1: never
     * @return this
     */
    public ContextOptions checkInterval(long value) {
        checkInterval = value;
        return this;
    }

    /**
     * NaN or infinity in a gradient breaks the context with {@link DdpException.Nonfinite}
     * (ddp/check.h).
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions refuseNonfinite(boolean value) {
        refuseNonfinite = value;
        return this;
    }

    /**
     * NaN or infinity in a gradient makes all ranks skip the step: finalizeStep throws {@link
     * DdpException.Nonfinite}, and the context goes on (ddp/check.h).
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions skipNonfinite(boolean value) {
        skipNonfinite = value;
        return this;
    }

    /**
     * How often ranks compare the values of parameters, without check (ddp/check.h).
     *
     * @param value in synced steps; 0, the default: never
     * @return this
     */
    public ContextOptions verifyInterval(long value) {
        verifyInterval = value;
        return this;
    }

    /**
     * With verifyInterval: compares buffers too.
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions verifyBuffers(boolean value) {
        verifyBuffers = value;
        return this;
    }

    /**
     * Tries other bucket caps in the first steps of the job, and keeps the fastest.
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions autotune(boolean value) {
        autotune = value;
        return this;
    }

    /**
     * Each rank updates a share of the parameters: {@link Context#pieces} and {@link
     * Context#publish}.
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions shard(boolean value) {
        shard = value;
        return this;
    }

    /**
     * Bits of each rank travel with each step: {@link Context#vote} and {@link Context#votes}.
     *
     * @param value false by default
     * @return this
     */
    public ContextOptions votes(boolean value) {
        votes = value;
        return this;
    }

    void fill(ddp_context_options made) {
        made.setBucket_cap_bytes(notNegative("bucketCap", bucketCap));
        made.setFirst_bucket_cap_bytes(notNegative("firstBucketCap", firstBucketCap));
        for (long each : bucketCaps) notNegative("bucketCaps", each);
        made.set_bucket_caps(bucketCaps);
        made.setReduction(reduction.code);
        made.setRebuild_interval(notNegative("rebuildInterval", rebuildInterval));
        made.setCheck_interval(checkInterval);
        made.setVerify_interval(notNegative("verifyInterval", verifyInterval));
        made.setFlags(flags());
    }

    private int flags() {
        return flag(!rebuild, ddp.DDP_CONTEXT_NO_REBUILD)
                | flag(!initialBroadcast, ddp.DDP_CONTEXT_NO_INITIAL_BROADCAST)
                | flag(!broadcastBuffers, ddp.DDP_CONTEXT_NO_BUFFER_BROADCAST)
                | flag(findUnused, ddp.DDP_CONTEXT_FIND_UNUSED)
                | flag(staticGraph, ddp.DDP_CONTEXT_STATIC_GRAPH)
                | flag(keepLocalUnused, ddp.DDP_CONTEXT_KEEP_LOCAL_UNUSED)
                | flag(skipUnusedBuckets, ddp.DDP_CONTEXT_SKIP_UNUSED_BUCKETS)
                | flag(join, ddp.DDP_CONTEXT_JOIN)
                | flag(divideByPresent, ddp.DDP_CONTEXT_DIVIDE_BY_PRESENT)
                | flag(stopAtFirstJoin, ddp.DDP_CONTEXT_STOP_AT_FIRST_JOIN)
                | flag(consensusOrder, ddp.DDP_CONTEXT_CONSENSUS_ORDER)
                | flag(accumulate, ddp.DDP_CONTEXT_ACCUMULATE) | flag(check, ddp.DDP_CONTEXT_CHECK)
                | flag(refuseNonfinite, ddp.DDP_CONTEXT_REFUSE_NONFINITE)
                | flag(skipNonfinite, ddp.DDP_CONTEXT_SKIP_NONFINITE)
                | flag(verifyBuffers, ddp.DDP_CONTEXT_VERIFY_BUFFERS)
                | flag(autotune, ddp.DDP_CONTEXT_AUTOTUNE) | flag(shard, ddp.DDP_CONTEXT_SHARD)
                | flag(votes, ddp.DDP_CONTEXT_VOTES);
    }

    private static long notNegative(String what, long value) {
        if (value < 0) throw new IllegalArgumentException(what + ": " + value + " is negative");
        return value;
    }

    private static int flag(boolean set, int bit) {
        return set ? bit : 0;
    }
}
