package org.libddp;

/** A rank's samples of a global batch: {@link Context#batchShare}. */
public final class BatchShare {
    private final long begin;
    private final long end;

    BatchShare(long begin, long end) {
        this.begin = begin;
        this.end = end;
    }

    /** {@return the first sample} */
    public long begin() {
        return begin;
    }

    /** {@return the sample after the last one} */
    public long end() {
        return end;
    }

    /** {@return how many there are} */
    public long size() {
        return end - begin;
    }
}
