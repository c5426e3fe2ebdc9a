package org.libddp;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * A connection to the rendezvous store, a small key-value service that the ranks of a job share (ddp/store.h). Values are bytes.
 * A null time is the store's default. Threads: any. {@link Thread#interrupt} ends a wait.
 */
public final class Store implements AutoCloseable {
    final Handle<Kind.ddp_store> handle;

    /** A client. uri: "tcp://host:port" or "file:///absolute/path". */
    public Store(String uri) {
        this(uri, new StoreOptions());
    }

    /** Opens a store. uri: "tcp://host:port" or "file:///absolute/path". */
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

    /** The port that the server listens on; -1 for a file store. */
    public int port() {
        return ddp.ddp_store_port(handle);
    }

    /** Sets key to value, in place of the old value. */
    public void set(String key, byte[] value) {
        ddp.ddp_store_set(handle, key, value);
    }

    /** The same with text, in UTF-8. */
    public void set(String key, String value) {
        set(key, value.getBytes(StandardCharsets.UTF_8));
    }

    /** Waits until key exists, then returns its value. */
    public byte[] get(String key) {
        return get(key, null);
    }

    /** Waits until key exists, then returns its value. */
    public byte[] get(String key, Duration timeout) {
        byte[][] value = new byte[1][];
        ddp.ddp_store_get(handle, key, Ddp.milliseconds("timeout", timeout), value);
        return value[0];
    }

    /**
     * Sets key to {@code desired} if its value is {@code expected} (empty: or the key is missing). Returns the value
     * that key then has.
     */
    public byte[] compareSet(String key, byte[] expected, byte[] desired) {
        byte[][] value = new byte[1][];
        ddp.ddp_store_compare_set(handle, key, expected, desired, value);
        return value[0];
    }

    /** Adds to the decimal integer under key, and returns the sum. */
    public long add(String key, long amount) {
        long[] sum = new long[1];
        ddp.ddp_store_add(handle, key, amount, sum);
        return sum[0];
    }

    /** Appends to the value under key. */
    public void append(String key, byte[] value) {
        ddp.ddp_store_append(handle, key, value);
    }

    /** Whether all keys exist now. */
    public boolean check(Collection<String> keys) {
        int[] exists = new int[1];
        ddp.ddp_store_check(handle, keys, exists);
        return exists[0] != 0;
    }

    /** Waits until all keys exist. */
    public void await(Collection<String> keys, Duration timeout) {
        ddp.ddp_store_wait(handle, keys, Ddp.milliseconds("timeout", timeout));
    }

    /** Sets many keys in one round trip, all or none. */
    public void multiSet(Map<String, byte[]> values) {
        ddp.ddp_store_multi_set(handle, values);
    }

    /** Waits until all keys exist, and returns their values. */
    public List<byte[]> multiGet(Collection<String> keys, Duration timeout) {
        byte[][] values = new byte[keys.size()][];
        ddp.ddp_store_multi_get(handle, keys, Ddp.milliseconds("timeout", timeout), values);
        return Arrays.asList(values);
    }

    /** Deletes a key. Returns whether it existed. */
    public boolean delete(String key) {
        int[] deleted = new int[1];
        ddp.ddp_store_delete(handle, key, deleted);
        return deleted[0] != 0;
    }

    /** The number of keys, libddp's own included. */
    public long size() {
        long[] count = new long[1];
        ddp.ddp_store_num_keys(handle, count);
        return count[0];
    }

    /** The keys that begin with prefix, sorted. */
    public List<String> keys(String prefix) {
        byte[][] found = new byte[1][];
        ddp.ddp_store_list_keys(handle, prefix, found);
        List<String> keys = new ArrayList<>();
        String all = Text.of(found[0]);
        for (int from = 0, to = all.indexOf('\0'); to >= 0; from = to + 1, to = all.indexOf('\0', from))
            keys.add(all.substring(from, to));
        return keys;
    }

    /** Appends to a first-in first-out queue. */
    public void push(String queue, byte[] value) {
        ddp.ddp_store_queue_push(handle, queue, value);
    }

    /** Waits for an element of a queue, and takes it. */
    public byte[] pop(String queue, Duration timeout) {
        byte[][] value = new byte[1][];
        ddp.ddp_store_queue_pop(handle, queue, Ddp.milliseconds("timeout", timeout), value);
        return value[0];
    }

    /** The number of elements in a queue. */
    public long queueSize(String queue) {
        long[] count = new long[1];
        ddp.ddp_store_queue_size(handle, queue, count);
        return count[0];
    }

    /** Waits until {@code count} callers have reached the barrier. */
    public void barrier(String name, long count, Duration timeout) {
        ddp.ddp_store_barrier(handle, name, count, Ddp.milliseconds("timeout", timeout));
    }

    /** Closes the connection, and ends the server if it is here. Takes effect when calls in other threads have returned. */
    @Override
    public void close() {
        Handle.close(handle);
    }
}
