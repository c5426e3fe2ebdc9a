package org.libddp;

import java.time.Duration;

/** How to open a {@link Store}. */
public final class StoreOptions {
    private boolean server;
    private Duration timeout;
    private String secret;
    private boolean insecure;

    /**
     * This process also runs the server, until the store is closed (tcp only; port 0 takes a free
     * one, see {@link Store#port}).
     *
     * @param value false by default
     * @return this
     */
    public StoreOptions server(boolean value) {
        server = value;
        return this;
    }

    /**
     * How long opening may take, and each later wait that is not given a time, in whole
     * milliseconds.
     *
     * @param value positive; null: 300 s
     * @return this
     */
    public StoreOptions timeout(Duration value) {
        timeout = value;
        return this;
    }

    /**
     * The job secret, the same for the server and its clients.
     *
     * @param value null: the secret of the environment variable DDP_SECRET, or of the file that
     *     DDP_SECRET_FILE names
     * @return this
     */
    public StoreOptions secret(String value) {
        secret = value;
        return this;
    }

    /**
     * Meet at any address without a job secret (DDP_STORE_INSECURE): every process that reaches it
     * can join.
     *
     * @param value false by default
     * @return this
     */
    public StoreOptions insecure(boolean value) {
        insecure = value;
        return this;
    }

    void fill(ddp_store_options made) {
        made.setIs_server(server ? 1 : 0);
        made.setTimeout_ms(Ddp.milliseconds("timeout", timeout));
        made.setSecret(Text.checked("secret", secret));
        made.setFlags(insecure ? ddp.DDP_STORE_INSECURE : 0);
    }
}
