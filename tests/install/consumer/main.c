/* A trainer outside the source tree: one rank, one parameter, one step. Compiled as C99 against an
 * installed libddp. */
#include <ddp/ddp.h>
#include <stdio.h>
#include <string.h>

static int failed(const char* what, ddp_error* error) {
    fprintf(stderr, "%s: %s\n", what, ddp_error_message(error));
    ddp_error_free(error);
    return 1;
}

int main(void) {
    ddp_group_options options;
    ddp_group* group = NULL;
    ddp_context* context = NULL;
    ddp_param_desc desc;
    ddp_param param = -1;
    ddp_error* error = NULL;
    const int64_t shape[1] = {4};
    float data[4] = {1, 2, 3, 4};
    float grad[4] = {4, 3, 2, 1};
    const float expected[4] = {4, 3, 2, 1};

    ddp_group_options_init(&options);
    options.rank = 0;
    options.world_size = 1;
    options.init_method = "tcp://127.0.0.1:0";
    options.timeout_ms = 20000;
    if (ddp_group_create(&options, &group, &error)) return failed("ddp_group_create", error);
    if (ddp_context_create(group, NULL, &context, &error))
        return failed("ddp_context_create", error);

    ddp_param_desc_init(&desc);
    desc.name = "weight";
    desc.shape = shape;
    desc.ndim = 1;
    desc.data = data;
    desc.grad = grad;
    if (ddp_register_param(context, &desc, &param, &error))
        return failed("ddp_register_param", error);
    if (ddp_commit(context, &error)) return failed("ddp_commit", error);
    if (ddp_grad_ready(context, param, &error)) return failed("ddp_grad_ready", error);
    if (ddp_finalize(context, &error)) return failed("ddp_finalize", error);
    ddp_context_free(context);
    ddp_group_free(group);

    if (memcmp(grad, expected, sizeof(grad)) != 0) {
        fprintf(stderr, "the mean over one rank is not the rank's own gradient\n");
        return 1;
    }
    printf("libddp %s: one step on one rank\n", ddp_version());
    return 0;
}
