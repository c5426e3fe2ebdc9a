/* random.h: splitmix64, so that a seed gives the same numbers on every machine (rand() does not).
 */
#ifndef EXAMPLES_RANDOM_H
#define EXAMPLES_RANDOM_H

#include <stdint.h>

static inline uint64_t random_u64(uint64_t* state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [0, 1): the upper 24 bits, which a float holds exactly. */
static inline float random_uniform(uint64_t* state) {
    return (float)(random_u64(state) >> 40) / 16777216.0f;
}

/* Puts 0 to count - 1 into an order that depends on the seed and the epoch alone. */
static inline void random_order(int* order, int count, uint64_t seed, int epoch) {
    uint64_t state = seed * UINT64_C(1000003) + (uint64_t)epoch;
    for (int i = 0; i < count; ++i) order[i] = i;
    for (int i = count - 1; i > 0; --i) {
        const int j = (int)(random_u64(&state) % (uint64_t)(i + 1));
        const int moved = order[i];
        order[i] = order[j];
        order[j] = moved;
    }
}

#endif /* EXAMPLES_RANDOM_H */
