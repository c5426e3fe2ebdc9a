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
    private boolean check;
    private long checkInterval;

    /** A bucket is closed once it holds at least this many bytes of gradients. */
    public ContextOptions bucketCap(long value) {
        bucketCap = value;
        return this;
    }

    /** The same for the first bucket, which is small so that communication starts early. */
    public ContextOptions firstBucketCap(long value) {
        firstBucketCap = value;
        return this;
    }

    /** Caps in bytes, bucket by bucket, instead of the two; the last one repeats. */
    public ContextOptions bucketCaps(long... value) {
        bucketCaps = value.clone();
        return this;
    }

    /** What gradients become. */
    public ContextOptions reduction(Reduction value) {
        reduction = value;
        return this;
    }

    /** libddp records the ready order again after every so many synced steps. */
    public ContextOptions rebuildInterval(long value) {
        rebuildInterval = value;
        return this;
    }

    /** Follow rank 0's ready order after the first step (default true). */
    public ContextOptions rebuild(boolean value) {
        rebuild = value;
        return this;
    }

    /** {@link Context#commit} sends rank 0's values to everyone (default true). */
    public ContextOptions initialBroadcast(boolean value) {
        initialBroadcast = value;
        return this;
    }

    /** {@link Context#stepBegin} sends rank 0's buffers to everyone (default true). */
    public ContextOptions broadcastBuffers(boolean value) {
        broadcastBuffers = value;
        return this;
    }

    /** A gradient that is not announced counts as unused in this step, not as missing. */
    public ContextOptions findUnused(boolean value) {
        findUnused = value;
        return this;
    }

    /** The first synced step records which gradients are used. */
    public ContextOptions staticGraph(boolean value) {
        staticGraph = value;
        return this;
    }

    /** A gradient that this rank did not use stays as it is. */
    public ContextOptions keepLocalUnused(boolean value) {
        keepLocalUnused = value;
        return this;
    }

    /** With findUnused: buckets that no rank used are not sent. */
    public ContextOptions skipUnusedBuckets(boolean value) {
        skipUnusedBuckets = value;
        return this;
    }

    /** Ranks may run out of inputs before others: {@link Context#join}. */
    public ContextOptions join(boolean value) {
        join = value;
        return this;
    }

    /** With join: the mean is over the ranks that still have inputs. */
    public ContextOptions divideByPresent(boolean value) {
        divideByPresent = value;
        return this;
    }

    /** With join: all ranks stop as soon as one has no more inputs. */
    public ContextOptions stopAtFirstJoin(boolean value) {
        stopAtFirstJoin = value;
        return this;
    }

    /** Rebuild buckets in the order of the mean over ranks, not in rank 0's. */
    public ContextOptions consensusOrder(boolean value) {
        consensusOrder = value;
        return this;
    }

    /** Finds mistakes that are otherwise silent (DDP_CONTEXT_CHECK in ddp/context.h). So does DDP_DEBUG=check. */
    public ContextOptions check(boolean value) {
        check = value;
        return this;
    }

    /** With check: every so many synced steps ranks compare the values of parameters; -1: never. */
    public ContextOptions checkInterval(long value) {
        checkInterval = value;
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
        made.setFlags(flags());
    }

    private int flags() {
        return flag(!rebuild, ddp.DDP_CONTEXT_NO_REBUILD)
                | flag(!initialBroadcast, ddp.DDP_CONTEXT_NO_INITIAL_BROADCAST)
                | flag(!broadcastBuffers, ddp.DDP_CONTEXT_NO_BUFFER_BROADCAST)
                | flag(findUnused, ddp.DDP_CONTEXT_FIND_UNUSED) | flag(staticGraph, ddp.DDP_CONTEXT_STATIC_GRAPH)
                | flag(keepLocalUnused, ddp.DDP_CONTEXT_KEEP_LOCAL_UNUSED)
                | flag(skipUnusedBuckets, ddp.DDP_CONTEXT_SKIP_UNUSED_BUCKETS) | flag(join, ddp.DDP_CONTEXT_JOIN)
                | flag(divideByPresent, ddp.DDP_CONTEXT_DIVIDE_BY_PRESENT)
                | flag(stopAtFirstJoin, ddp.DDP_CONTEXT_STOP_AT_FIRST_JOIN)
                | flag(consensusOrder, ddp.DDP_CONTEXT_CONSENSUS_ORDER) | flag(check, ddp.DDP_CONTEXT_CHECK);
    }

    private static long notNegative(String what, long value) {
        if (value < 0) throw new IllegalArgumentException(what + ": " + value + " is negative");
        return value;
    }

    private static int flag(boolean set, int bit) {
        return set ? bit : 0;
    }
}
