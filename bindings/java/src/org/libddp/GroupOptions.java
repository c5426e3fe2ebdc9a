package org.libddp;

import java.time.Duration;

/** How to join a {@link Group} (ddp/group.h). Options that are not set come from the launcher's
 * environment. */
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

    /**
     * This process's rank.
     *
     * @param value from 0 to worldSize - 1; null: from the environment
     * @return this
     */
    public GroupOptions rank(Integer value) {
        rank = value;
        return this;
    }

    /**
     * The number of ranks.
     *
     * @param value at least 1; null: from the environment
     * @return this
     */
    public GroupOptions worldSize(Integer value) {
        worldSize = value;
        return this;
    }

    /**
     * Where ranks meet.
     *
     * @param value "tcp://host:port": a store in rank 0; "file:///path": a file that all ranks see;
     *     "etcd://host:port/name": a store on etcd; "env://" or null: the launcher says where
     * @return this
     */
    public GroupOptions initMethod(String value) {
        initMethod = value;
        return this;
    }

    /**
     * The transport.
     *
     * @param value "shm", "tcp", "hierarchical", "gloo", "mpi", "nccl" or a registered one; "auto"
     *     or null: libddp chooses
     * @return this
     */
    public GroupOptions backend(String value) {
        backend = value;
        return this;
    }

    /**
     * Options of the backend: docs/backends.md has them.
     *
     * @param value "key=value,key=value"; null: the defaults
     * @return this
     */
    public GroupOptions backendOptions(String value) {
        backendOptions = value;
        return this;
    }

    /**
     * The bound of each wait of joining and of each collective, in whole milliseconds.
     *
     * @param value positive; null: DDP_TIMEOUT_MS of the environment, or 300 s
     * @return this
     */
    public GroupOptions timeout(Duration value) {
        timeout = value;
        return this;
    }

    /**
     * Ranks that give the same name meet, even if other groups share their store.
     *
     * @param value at most 256 bytes in UTF-8; null: "world"
     * @return this
     */
    public GroupOptions name(String value) {
        name = value;
        return this;
    }

    /**
     * Meet in this store, instead of initMethod.
     *
     * @param value a store that stays open as long as the group, or one split from it, lives; null:
     *     initMethod says where
     * @return this
     */
    public GroupOptions store(Store value) {
        store = value;
        return this;
    }

    /**
     * The job secret.
     *
     * @param value null: the secret of the environment variable DDP_SECRET, or of the file that
     *     DDP_SECRET_FILE names
     * @return this
     */
    public GroupOptions secret(String value) {
        secret = value;
        return this;
    }

    /**
     * Sums each element in rank order, however data is cut into buckets.
     *
     * @param value false by default: the last bits may differ between runs
     * @return this
     */
    public GroupOptions deterministic(boolean value) {
        deterministic = value;
        return this;
    }

    /**
     * Ranks compare what they are about to do before each collective.
     *
     * @param value true by default; false: a disagreement may corrupt sums, or hang until the
     *     timeout
     * @return this
     */
    public GroupOptions matchCheck(boolean value) {
        matchCheck = value;
        return this;
    }

    /**
     * Joins this many groups of the same ranks, and takes turns among them.
     *
     * @param value 1, the default, to 64
     * @return this
     */
    public GroupOptions roundRobin(int value) {
        roundRobin = value;
        return this;
    }

    /**
     * Meet at any address without a job secret (DDP_GROUP_INSECURE): every process that reaches it
     * can join.
     *
     * @param value false by default
     * @return this
     */
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
                | (matchCheck ? 0 : ddp.DDP_GROUP_NO_MATCH_CHECK)
                | (insecure ? ddp.DDP_GROUP_INSECURE : 0));
        made.setRound_robin(roundRobin);
    }
}
