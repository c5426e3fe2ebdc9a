package org.libddp;

/** The kind of a {@link Handle}. The classes are for the compiler; the numbers are those of
 * ddp_java_free in callbacks.c. */
final class Kind {
    static final int BORROWED = 0;
    static final int STORE = 1;
    static final int GROUP = 2;
    static final int WORK = 3;
    static final int CONTEXT = 4;
    static final int LAYOUT = 5;
    static final int AVERAGER = 6;
    static final int ERROR = 7;
    static final int MEMORY = 8;
    static final int ELASTIC = 9;
    static final int OPTIMIZER = 10;

    private Kind() {}

    static final class ddp_store {}

    static final class ddp_group {}

    static final class ddp_work {}

    static final class ddp_context {}

    static final class ddp_layout {}

    static final class ddp_averager {}

    static final class ddp_optimizer {}

    static final class ddp_elastic {}

    static final class ddp_error {}

    static final class ddp_bucket {}

    static final class ddp_memory {}
}
