/* check.h: the error handling of the examples: print libddp's sentence and leave. The other ranks learn of it by
 * themselves. */
#ifndef EXAMPLES_CHECK_H
#define EXAMPLES_CHECK_H

#include <ddp/ddp.h>
#include <stdio.h>
#include <stdlib.h>

/* CHECK(ddp_commit(context, &error)); the macro declares `error`. */
#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        ddp_error* error = NULL;                                                                           \
        if ((call) != DDP_OK) {                                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, ddp_status_name(ddp_error_code(error)), \
                    ddp_error_message(error));                                                             \
            ddp_error_free(error);                                                                         \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

/* Joins the ranks that a launcher (ddprun, torchrun, mpirun, srun) started, or is alone when there was none. */
static inline ddp_group* join_group(void) {
    ddp_group* group = NULL;
    ddp_error* none = NULL;
    const ddp_status status = ddp_group_create(NULL, &group, &none);
    const int launched = status != DDP_ERROR_NOT_FOUND;
    if (status != DDP_OK && launched) {
        fprintf(stderr, "cannot join the group: %s\n", ddp_error_message(none));
        exit(1);
    }
    ddp_error_free(none);
    if (launched) return group;

    ddp_group_options alone;
    ddp_group_options_init(&alone);
    alone.rank = 0;
    alone.world_size = 1;
    alone.init_method = "tcp://127.0.0.1:0";
    CHECK(ddp_group_create(&alone, &group, &error));
    return group;
}

#endif /* EXAMPLES_CHECK_H */
