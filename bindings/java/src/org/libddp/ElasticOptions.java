package org.libddp;

import java.time.Duration;

/** How to make an {@link Elastic} job (ddp/elastic.h). */
public final class ElasticOptions {
    private GroupOptions group = new GroupOptions();
    private int minWorld;
    private int maxWorld;
    private Duration settle;

    /**
     * Where the ranks meet, and how their groups are made.
     *
     * @param value without rank and worldSize: the ranks that come decide them
     * @return this
     */
    public ElasticOptions group(GroupOptions value) {
        group = value;
        return this;
    }

    /**
     * Fewer ranks wait for others, at most the group's timeout.
     *
     * @param value 0, the default: what ddprun says, or 1
     * @return this
     */
    public ElasticOptions minWorld(int value) {
        minWorld = value;
        return this;
    }

    /**
     * More ranks wait until there is room.
     *
     * @param value 0, the default: what ddprun says, or no limit
     * @return this
     */
    public ElasticOptions maxWorld(int value) {
        maxWorld = value;
        return this;
    }

    /**
     * How long the first roster waits for more than minWorld ranks, and a later one for a rank that
     * does not answer and is not known to be dead, in whole milliseconds.
     *
     * @param value positive; null: 30 s
     * @return this
     */
    public ElasticOptions settle(Duration value) {
        settle = value;
        return this;
    }

    GroupOptions group() {
        return group;
    }

    void fill(ddp_elastic_options made) {
        made.setMin_world(minWorld);
        made.setMax_world(maxWorld);
        made.setSettle_ms(Ddp.milliseconds("settle", settle));
    }
}
