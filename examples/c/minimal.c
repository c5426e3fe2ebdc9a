/* minimal.c: a whole distributed trainer. It fits y = w0 + w1 x to samples; each rank has its own.
 *
 *     ddprun -n 2 ./minimal          every rank ends with the same w, trained on both ranks' samples
 */
#include <ddp/ddp.h>
#include <stdio.h>
#include <stdlib.h>
#define CHECK(call) \
    ((call) == DDP_OK ? (void)0 : (fprintf(stderr, "%s\n", ddp_error_message(error)), exit(1)))

int main(void) {
    const int64_t shape[1] = {2};
    float w[2] = {0.0f, 0.0f}, grad[2];
    ddp_error* error;
    ddp_group* group;
    ddp_context* context;
    ddp_param_desc desc;
    ddp_param param;
    CHECK(ddp_group_create(NULL, &group, &error)); /* rank and world size from the launcher */
    CHECK(ddp_context_create(group, NULL, &context, &error));
    ddp_param_desc_init(&desc);
    desc.name = "w", desc.shape = shape, desc.ndim = 1, desc.data = w, desc.grad = grad;
    CHECK(ddp_register_param(context, &desc, &param, &error));
    CHECK(ddp_commit(context, &error)); /* every rank starts from rank 0's w */
    for (int step = 0; step < 500; ++step) {
        /* a sample of this rank's own */
        const float x = (float)((7 * step + ddp_group_rank(group)) % 10) / 10.0f;
        /* prediction minus truth */
        const float wrong = w[0] + w[1] * x - (3.0f - 2.0f * x);
        grad[0] = wrong, grad[1] = wrong * x;
        CHECK(ddp_grad_ready(context, param, &error)); /* starts the averaging over ranks */
        CHECK(ddp_finalize(context, &error));          /* grad is now the mean */
        w[0] -= 0.5f * grad[0], w[1] -= 0.5f * grad[1];
    }
    printf("rank %d: y = %.3f %+.3f x\n", ddp_group_rank(group), w[0], w[1]);
    ddp_context_free(context);
    ddp_group_free(group);
}
