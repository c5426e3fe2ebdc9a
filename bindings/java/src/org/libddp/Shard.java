package org.libddp;

/**
 * The samples of one rank.
 *
 * @param begin the first sample
 * @param end where they end: the first sample of the next rank
 */
public record Shard(long begin, long end) {
    /**
     * {@return the share of a rank of the samples 0 to {@code count - 1}} Shares lie in the order
     * of ranks, differ by at most one sample, and together are all samples.
     *
     * @param count the number of samples
     * @param rank which rank
     * @param worldSize of how many
     */
    public static Shard of(long count, int rank, int worldSize) {
        long[] begin = new long[1];
        long[] end = new long[1];
        ddp.ddp_shard_range(count, rank, worldSize, begin, end);
        return new Shard(begin[0], end[0]);
    }

    /** {@return how many samples there are} */
    public long size() {
        return end - begin;
    }
}
