package org.libddp;

import java.time.Duration;

/** How to join a {@link Group} (ddp/group.h). What is not set comes from the launcher's environment. */
public final class GroupOptions {
    private Integer rank;
    private Integer worldSize;
    private String initMethod;
    private String backend;
    private String backendOptions;
    private Duration timeout;
    private String name;
    private Store store;
    private String secret;
    private boolean deterministic;
    private boolean matchCheck = true;
    private int roundRobin = 1;
    private boolean insecure;

    /** This process's rank. */
    public GroupOptions rank(Integer value) {
        rank = value;
        return this;
    }

    /** The number of ranks. */
    public GroupOptions worldSize(Integer value) {
        worldSize = value;
        return this;
    }

    /** Where ranks meet: "env://", "tcp://host:port" or "file:///path". */
    public GroupOptions initMethod(String value) {
        initMethod = value;
        return this;
    }

    /** The transport: "shm", "gloo", "hierarchical", "mpi" or a registered one. Without: libddp chooses. */
    public GroupOptions backend(String value) {
        backend = value;
        return this;
    }

    /** Options of the backend: "key=value,key=value". */
    public GroupOptions backendOptions(String value) {
        backendOptions = value;
        return this;
    }

    /** The bound of joining and of each collective. */
    public GroupOptions timeout(Duration value) {
        timeout = value;
        return this;
    }

    /** Ranks that give the same name meet. */
    public GroupOptions name(String value) {
        name = value;
        return this;
    }

    /** Meet in this store, which must stay open as long as the group lives. */
    public GroupOptions store(Store value) {
        store = value;
        return this;
    }

    /** The job secret; else that of the environment variable DDP_SECRET, or of the file that DDP_SECRET_FILE names. */
    public GroupOptions secret(String value) {
        secret = value;
        return this;
    }

    /** Sums each element in rank order, however data is cut into buckets. */
    public GroupOptions deterministic(boolean value) {
        deterministic = value;
        return this;
    }

    /** Ranks compare what they are about to do before each collective (default true). */
    public GroupOptions matchCheck(boolean value) {
        matchCheck = value;
        return this;
    }

    /** Joins this many groups of the same ranks, and takes turns among them. */
    public GroupOptions roundRobin(int value) {
        roundRobin = value;
        return this;
    }

    /** Meet at any address without a job secret (DDP_GROUP_INSECURE): every process that reaches it can join. */
    public GroupOptions insecure(boolean value) {
        insecure = value;
        return this;
    }

    Store store() {
        return store;
    }

    void fill(ddp_group_options made) {
        made.setRank(rank == null ? -1 : rank);
        made.setWorld_size(worldSize == null ? -1 : worldSize);
        made.setInit_method(Text.checked("initMethod", initMethod));
        made.setBackend(Text.checked("backend", backend));
        made.setBackend_options(Text.checked("backendOptions", backendOptions));
        made.setTimeout_ms(Ddp.milliseconds("timeout", timeout));
        made.setGroup_name(Text.checked("name", name));
        made.setSecret(Text.checked("secret", secret));
        made.setFlags(ddp.DDP_GROUP_OR_ALONE | (deterministic ? ddp.DDP_GROUP_DETERMINISTIC : 0)
                | (matchCheck ? 0 : ddp.DDP_GROUP_NO_MATCH_CHECK) | (insecure ? ddp.DDP_GROUP_INSECURE : 0));
        made.setRound_robin(roundRobin);
    }
}
