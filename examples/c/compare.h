/* compare.h: how far two networks that were trained on the same batches are apart, and how far they
 * may be. */
#ifndef EXAMPLES_COMPARE_H
#define EXAMPLES_COMPARE_H

#include "mlp.h"
#include "settings.h"

/* The largest differences of any weight. `relative` is to the larger of that weight and its
 * tensor's root mean square: a weight near zero has no relative error worth the name. */
typedef struct difference {
    double absolute;
    double relative;
} difference;

difference compare_weights(const mlp* a, const mlp* b);

/* Largest absolute difference that rounding may explain after this many steps. */
double difference_bound(const settings* s, int steps);

#endif /* EXAMPLES_COMPARE_H */
