/* Joins the ranks that a launcher started, over the backend that the argument names, and adds up
 * their numbers. */
#include <ddp/ddp.h>
#include <stdio.h>

int main(int argc, char** argv) {
    ddp_group_options options;
    ddp_group* group = NULL;
    ddp_error* error = NULL;
    double sum = 0;

    ddp_group_options_init(&options);
    if (argc > 1) options.backend = argv[1];
    options.timeout_ms = 20000;
    if (ddp_group_create(&options, &group, &error) == DDP_OK) {
        sum = ddp_group_rank(group) + 1;
        if (ddp_allreduce(group, &sum, &sum, 1, DDP_F64, DDP_SUM, NULL, &error) == DDP_OK)
            printf("rank %d of %d over %s: sum %g\n", ddp_group_rank(group),
                   ddp_group_world_size(group), ddp_group_backend(group), sum);
        ddp_group_free(group);
    }
    if (error) fprintf(stderr, "%s\n", ddp_error_message(error));
    return error != NULL;
}
