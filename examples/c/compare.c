#include "compare.h"

#include <float.h>
#include <math.h>

static void compare_tensor(const mlp_tensor* a, const mlp_tensor* b, difference* worst) {
    double squares = 0.0;
    for (size_t i = 0; i < b->count; ++i) squares += (double)b->value[i] * b->value[i];
    const double scale = sqrt(squares / (double)b->count);
    for (size_t i = 0; i < b->count; ++i) {
        const double apart = fabs((double)a->value[i] - b->value[i]);
        const double counted = isnan(apart) ? INFINITY : apart; /* fmax would ignore a NaN */
        const double size = fmax(scale, fabs((double)b->value[i]));
        worst->absolute = fmax(worst->absolute, counted);
        worst->relative = fmax(worst->relative, counted > 0.0 ? counted / size : 0.0);
    }
}

difference compare_weights(const mlp* a, const mlp* b) {
    difference worst = {0.0, 0.0};
    for (int i = 0; i < MLP_TENSORS; ++i) compare_tensor(&a->tensors[i], &b->tensors[i], &worst);
    return worst;
}

/* Why weights may differ at all: floating-point addition rounds, and one process adds a batch's
 * gradients in another order than several do. The mean of B numbers of size G, added one after the
 * other, is off by at most B * epsilon * G. Each step's error enters the weights times lr / (1 -
 * momentum), the sum of all that momentum makes of it, and steps add up.
 *
 * G = 0.1: an image's gradient of one weight is an activation times a derivative of the softmax,
 * mostly below 0.01, and errors of single additions mostly cancel. The rest, a factor of about a
 * hundred by measurement, is room for growth: an early difference changes later gradients. It is
 * not room for mistakes: when one rank's gradient of one layer is dropped in a single one of 1,250
 * steps, the difference is seventeen times the bound. (A learning rate at which training is
 * unstable makes the growth exponential, and breaks the bound without any mistake.) */
double difference_bound(const settings* s, int steps) {
    const double gradient = 0.1;
    return (double)steps * s->lr / (1.0 - s->momentum) * s->batch * FLT_EPSILON * gradient;
}
