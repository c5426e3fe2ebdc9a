package org.libddp;

import java.time.Duration;

/** How to open a {@link Store}. */
public final class StoreOptions {
    private boolean server;
    private Duration timeout;
    private String secret;
    private boolean insecure;

    /** This process also runs the server (tcp only; port 0 takes a free one, see {@link Store#port}). */
    public StoreOptions server(boolean value) {
        server = value;
        return this;
    }

    /** How long opening may take, and each later wait that is not given a time. */
    public StoreOptions timeout(Duration value) {
        timeout = value;
        return this;
    }

    /** The job secret; else that of the environment variable DDP_SECRET, or of the file that DDP_SECRET_FILE names. */
    public StoreOptions secret(String value) {
        secret = value;
        return this;
    }

    /** Meet at any address without a job secret (DDP_STORE_INSECURE): every process that reaches it can join. */
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
