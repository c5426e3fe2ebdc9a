/* check.h: the error handling of the examples: print libddp's sentence and leave. The other ranks
 * learn of it by themselves. */
#ifndef EXAMPLES_CHECK_H
#define EXAMPLES_CHECK_H

#include <ddp/ddp.h>
#include <stdio.h>
#include <stdlib.h>

/* CHECK(ddp_commit(context, &error)); the macro declares `error`. */
#define CHECK(call)                                                                    \
    do {                                                                               \
        ddp_error* error = NULL;                                                       \
        if ((call) != DDP_OK) {                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,                     \
                    ddp_status_name(ddp_error_code(error)), ddp_error_message(error)); \
            ddp_error_free(error);                                                     \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* Joins the ranks that a launcher (ddprun, torchrun, mpirun, srun) started, or is alone when there
 * was none. */
static inline ddp_group* join_group(void) {
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.flags = DDP_GROUP_OR_ALONE;
    ddp_group* group = NULL;
    CHECK(ddp_group_create(&options, &group, &error));
    return group;
}

#endif /* EXAMPLES_CHECK_H */
