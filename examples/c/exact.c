/* exact.c: proves sums bit by bit. Every rank gives gradients of small integers, which
 * floating-point formats hold and add without rounding. So whatever order the ranks are added in,
 * however gradients are put into buckets, the result has one right bit pattern, and each rank can
 * compute it alone because it knows what the others gave.
 *
 *     ddprun -n 4 ./exact            prints "bit-equal", or the first difference and ends with status 1
 */
#define DDP_EXPERIMENTAL 1 /* plan.h */

#include <string.h>

#include "check.h"

enum { TYPES = 8, SIZES = 4, GRADIENTS = TYPES * SIZES, STEPS = 4, LARGEST = 3, MAX_ELEMENT = 16 };

/* bf16 holds every integer up to 256: more ranks than this could make a sum that it has to round.
 */
enum { MAX_WORLD = 256 / LARGEST };

static const ddp_dtype types[TYPES] = {DDP_F32, DDP_F64,  DDP_F16, DDP_BF16,
                                       DDP_C64, DDP_C128, DDP_I32, DDP_I64};

/* One element, an odd few, less than a page, and more than a bucket. */
static const int64_t sizes[SIZES] = {1, 7, 1000, 100003};

typedef struct gradient {
    ddp_dtype dtype;
    int64_t count;
    unsigned char* own; /* NULL: it lives in its bucket */
} gradient;

/* The gradient of a rank: an integer from -LARGEST to LARGEST that depends on everything a mix-up
 * could confuse. */
static int given(int rank, int param, int step, int64_t element) {
    uint64_t x = (uint64_t)element * 1000003u + (uint64_t)(rank * 8191 + param * 131 + step * 31);
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    return (int)(x % (2 * LARGEST + 1)) - LARGEST;
}

static int given_by_all(int world, int param, int step, int64_t element) {
    int sum = 0;
    for (int rank = 0; rank < world; ++rank) sum += given(rank, param, step, element);
    return sum;
}

/* Exact below 2048, the width of binary16's significand. */
static uint16_t to_f16(int value) {
    const unsigned size = (unsigned)abs(value);
    unsigned exponent = 0;
    if (value == 0) return 0;
    while ((size >> (exponent + 1)) != 0) ++exponent;
    const unsigned fraction = (size << (10 - exponent)) & 0x3ffu;
    return (uint16_t)((value < 0 ? 0x8000u : 0u) | ((exponent + 15u) << 10) | fraction);
}

static uint16_t to_bf16(int value) {
    const float wide = (float)value;
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* The integer as one element of this type. A complex element gets it as its real part and its
 * negative as the imaginary one. */
static void encode(int value, ddp_dtype dtype, unsigned char* element) {
    const uint16_t f16 = to_f16(value), bf16 = to_bf16(value);
    const float f32[2] = {(float)value, (float)-value};
    const double f64[2] = {(double)value, (double)-value};
    const int32_t i32 = value;
    const int64_t i64 = value;
    const void* bytes = f32;
    if (dtype == DDP_F16) bytes = &f16;
    if (dtype == DDP_BF16) bytes = &bf16;
    if (dtype == DDP_F64 || dtype == DDP_C128) bytes = f64;
    if (dtype == DDP_I32) bytes = &i32;
    if (dtype == DDP_I64) bytes = &i64;
    memcpy(element, bytes, ddp_dtype_size(dtype));
}

static ddp_context* make_context(ddp_group* group, gradient* gradients) {
    ddp_context_options options;
    ddp_context_options_init(&options);
    options.reduction = DDP_REDUCTION_SUM;
    options.bucket_cap_bytes = 64 * 1024; /* small, so that there are many buckets */
    ddp_context* context = NULL;
    CHECK(ddp_context_create(group, &options, &context, &error));
    for (int i = 0; i < GRADIENTS; ++i) {
        gradient* g = &gradients[i];
        g->dtype = types[i % TYPES];
        g->count = sizes[i / TYPES];
        g->own =
            (i + i / TYPES) % 2 == 0 ? NULL : malloc((size_t)g->count * ddp_dtype_size(g->dtype));
        char name[64];
        snprintf(name, sizeof name, "%s[%lld]", ddp_dtype_name(g->dtype), (long long)g->count);
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name;
        desc.shape = &g->count;
        desc.ndim = 1;
        desc.dtype = g->dtype;
        desc.grad = g->own;
        ddp_param param;
        CHECK(ddp_register_param(context, &desc, &param, &error));
    }
    CHECK(ddp_commit(context, &error));
    return context;
}

static unsigned char* memory_of(ddp_context* context, const gradient* g, int param) {
    if (g->own != NULL) return g->own;
    void* view = NULL;
    CHECK(ddp_grad_view(context, param, &view, &error));
    return view;
}

static void give(ddp_context* context, const gradient* g, int param, int rank, int step) {
    const size_t size = ddp_dtype_size(g->dtype);
    unsigned char* memory = memory_of(context, g, param);
    for (int64_t e = 0; e < g->count; ++e)
        encode(given(rank, param, step, e), g->dtype, memory + (size_t)e * size);
    CHECK(ddp_grad_ready(context, param, &error));
}

/* Returns 1 after a message when an element is not the sum. */
static int differs(ddp_context* context, const gradient* g, int param, int world, int step) {
    const size_t size = ddp_dtype_size(g->dtype);
    const unsigned char* memory = memory_of(context, g, param);
    for (int64_t e = 0; e < g->count; ++e) {
        unsigned char expected[MAX_ELEMENT];
        const int sum = given_by_all(world, param, step, e);
        encode(sum, g->dtype, expected);
        if (memcmp(expected, memory + (size_t)e * size, size) == 0) continue;
        fprintf(stderr, "step %d, gradient %d (%s, %s), element %lld of %lld: not the bits of %d\n",
                step, param, ddp_dtype_name(g->dtype), g->own != NULL ? "copy" : "view",
                (long long)e, (long long)g->count, sum);
        return 1;
    }
    return 0;
}

/* The order of readiness is turned around at every step: the sums must not depend on it. */
static int run_step(ddp_context* context, const gradient* gradients, int rank, int world,
                    int step) {
    CHECK(ddp_step_begin(context, &error));
    for (int i = 0; i < GRADIENTS; ++i) {
        const int param = (step + rank) % 2 == 0 ? GRADIENTS - 1 - i : i;
        give(context, &gradients[param], param, rank, step);
    }
    CHECK(ddp_finalize(context, &error));
    int differences = 0;
    for (int i = 0; i < GRADIENTS && differences == 0; ++i)
        differences += differs(context, &gradients[i], i, world, step);
    return differences;
}

int main(void) {
    ddp_group* group = join_group();
    const int rank = ddp_group_rank(group), world = ddp_group_world_size(group);
    if (world > MAX_WORLD) {
        fprintf(stderr, "exact: at most %d ranks, so that bf16 holds every sum\n", MAX_WORLD);
        return 2;
    }
    gradient gradients[GRADIENTS];
    ddp_context* context = make_context(group, gradients);
    int32_t differences = 0;
    for (int step = 0; step < STEPS; ++step)
        differences += run_step(context, gradients, rank, world, step);
    CHECK(ddp_allreduce(group, NULL, &differences, 1, DDP_I32, DDP_SUM, NULL, &error));
    if (rank == 0 && differences == 0) {
        printf("bit-equal: %d gradients of %d types in %d buckets, %d steps, %d ranks\n", GRADIENTS,
               TYPES, ddp_context_bucket_count(context), STEPS, world);
    }
    ddp_context_free(context);
    for (int i = 0; i < GRADIENTS; ++i) free(gradients[i].own);
    ddp_group_free(group);
    return differences == 0 ? 0 : 1;
}
