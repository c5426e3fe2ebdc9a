package org.libddp;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Objects;

/**
 * A connection to the rendezvous store, a small key-value service that the ranks of a job share
 * (ddp/store.h). Values are bytes. A null time is the store's default. Threads: any. {@link
 * Thread#interrupt} ends a wait.
 */
public final class Store implements AutoCloseable {
    final Handle<Kind.ddp_store> handle;

    /**
     * Opens a store as a client.
     *
     * @param uri "tcp://host:port", "file:///absolute/path" or "etcd://host:port/name"
     */
    public Store(String uri) {
        this(uri, new StoreOptions());
    }

    /**
     * Opens a store.
     *
     * @param uri "tcp://host:port", "file:///absolute/path" or "etcd://host:port/name"; a tcp
     *     server binds this host, and takes a free port for port 0
     * @param options whether to serve, the times, and the job secret
     */
    public Store(String uri, StoreOptions options) {
        long[] made = new long[1];
        try (ddp_store_options given = new ddp_store_options()) {
            options.fill(given);
            given.setUri(Text.checked("uri", Objects.requireNonNull(uri, "uri")));
            ddp.ddp_store_create(given, made);
        }
        handle = Handle.own(Kind.STORE, made[0]);
    }

    Store(long made) {
        handle = Handle.own(Kind.STORE, made);
    }

    /** {@return the TCP port that the server listens on; -1 for a store in a file or on etcd} */
    public int port() {
        return ddp.ddp_store_port(handle);
    }

    /**
     * Sets key to value, in place of the old value.
     *
     * @param key 1 to 1,024 bytes in UTF-8
     * @param value at most 64 MiB
     */
    public void set(String key, byte[] value) {
        ddp.ddp_store_set(handle, key, value);
    }

    /**
     * The same with text, in UTF-8.
     *
     * @param key 1 to 1,024 bytes in UTF-8
     * @param value at most 64 MiB
     */
    public void set(String key, String value) {
        set(key, value.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * Waits until key exists, as long as the store allows.
     *
     * @param key 1 to 1,024 bytes in UTF-8
     * @return its value
     */
    public byte[] get(String key) {
        return get(key, null);
    }

    /**
     * Waits until key exists.
     *
     * @param key 1 to 1,024 bytes in UTF-8
     * @param timeout null: the timeout of the store
     * @return its value
     */
    public byte[] get(String key, Duration timeout) {
        byte[][] value = new byte[1][];
        ddp.ddp_store_get(handle, key, Ddp.milliseconds("timeout", timeout), value);
        return value[0];
    }

    /**
     * Sets key to {@code desired} if its value is {@code expected}. Atomic.
     *
     * @param key 1 to 1,024 bytes in UTF-8
     * @param expected the old value; empty: or the key is missing
     * @param desired the new value, at most 64 MiB
     * @return the value that key then has; empty if it is still missing
     */
    public byte[] compareSet(String key, byte[] expected, byte[] desired) {
        byte[][] value = new byte[1][];
        ddp.ddp_store_compare_set(handle, key, expected, desired, value);
        return value[0];
    }

    /**
     * Adds to the decimal integer under key. Atomic.
     *
     * @param key 1 to 1,024 bytes in UTF-8; a missing one counts as 0
     * @param amount the summand; it may be negative
     * @return the sum
     */
    public long add(String key, long amount) {
        long[] sum = new long[1];
        ddp.ddp_store_add(handle, key, amount, sum);
        return sum[0];
    }

    /**
     * {@return whether all keys exist now}
     *
     * @param keys at most 65,536
     */
    public boolean check(Collection<String> keys) {
        int[] exists = new int[1];
        ddp.ddp_store_check(handle, keys, exists);
        return exists[0] != 0;
    }

    /**
     * Waits until all keys exist.
     *
     * @param keys at most 65,536
     * @param timeout null: the timeout of the store
     */
    public void await(Collection<String> keys, Duration timeout) {
        ddp.ddp_store_wait(handle, keys, Ddp.milliseconds("timeout", timeout));
    }

    /**
     * Deletes a key.
     *
     * @param key 1 to 1,024 bytes in UTF-8
     * @return whether it existed
     */
    public boolean delete(String key) {
        int[] deleted = new int[1];
        ddp.ddp_store_delete(handle, key, deleted);
        return deleted[0] != 0;
    }

    /**
     * {@return the keys that begin with a prefix, sorted}
     *
     * @param prefix empty or null: all keys
     */
    public List<String> keys(String prefix) {
        byte[][] found = new byte[1][];
        ddp.ddp_store_list_keys(handle, prefix, found);
        List<String> keys = new ArrayList<>();
        String all = Text.of(found[0]);
        for (int from = 0, to = all.indexOf('\0'); to >= 0;
                from = to + 1, to = all.indexOf('\0', from))
            keys.add(all.substring(from, to));
        return keys;
    }

    /** Closes the connection, and ends the server if it is here. Takes effect when calls in other
     * threads have returned. */
    @Override
    public void close() {
        Handle.close(handle);
    }
}
