package org.libddp;

/** The owners of a parameter's elements, with {@link ContextOptions#shard}. */
public enum Owner {
    /** Each rank owns a range of its elements. */
    ELEMENTS(0),
    /** One rank owns all of it: for optimizers that need whole matrices. */
    WHOLE(1),
    /** Every rank owns all of it, and its value is not sent: for small parameters. */
    REPLICATED(2);

    final int code;

    Owner(int code) {
        this.code = code;
    }
}
