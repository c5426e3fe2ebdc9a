/* consumer.c: a program of one rank that uses every struct with struct_size. other_headers.py
 * compiles it with headers of another version, and writes structs.inc: INIT(type) for every struct
 * with defaults, USE(type) for every struct. So it may name only functions that every version has,
 * and no field that the older headers lack.
 *
 * Each struct lies once on the stack, and once at the end of a page, behind which no memory is. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DDP_EXPERIMENTAL 1
#include "ddp/ddp.h"

#define FILLER 0xA5

static const char* current = "";

static void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", current);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}
#define CHECK(condition) \
    if (!(condition)) fail("line %d: %s", __LINE__, #condition)

/* Ends the program unless the call succeeds. The last argument is `&error`. */
static ddp_error* error;
#define CALL(call) \
    if ((call) != DDP_OK) fail("line %d: %s: %s", __LINE__, #call, ddp_error_message(error))

/* Memory of libddp's caller: full of what nobody has set. */
static void* at_page_end(size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char* pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE) != 0) fail("no memory");
    memset(pages, FILLER, page);
    return pages + page - size;
}
#define AT_PAGE_END(type) ((type*)at_page_end(sizeof(type)))

/* Fields that only the newer headers have. */
#ifdef NEWER
#define CHECK_LATER(object) \
    for (int i = 0; i < 3; ++i) CHECK((object)->later[i] == 0)
#define SET_LATER(object) \
    for (int i = 0; i < 3; ++i) (object)->later[i] = (uint64_t)(uintptr_t)at_page_end(8)
#else
#define CHECK_LATER(object) (void)0
#define SET_LATER(object) (void)0
#endif

/* DEFAULTS. Every byte of the struct is set, none behind it. */
#define USE(type)
#define INIT(type)                                                                            \
    static void init_##type(void) {                                                           \
        type* last = AT_PAGE_END(type);                                                       \
        type on_stack;                                                                        \
        current = #type "_init";                                                              \
        type##_init(last);                                                                    \
        CHECK(last->struct_size == sizeof(type));                                             \
        for (size_t i = 0; i < sizeof(type); ++i) CHECK(((unsigned char*)last)[i] != FILLER); \
        CHECK_LATER(last);                                                                    \
        memset(&on_stack, FILLER, sizeof on_stack);                                           \
        type##_init(&on_stack);                                                               \
        CHECK(memcmp(&on_stack, last, sizeof on_stack) == 0);                                 \
    }
#include "structs.inc"
#undef INIT
#undef USE

#define DEFAULTS(type, object)        \
    type* object = AT_PAGE_END(type); \
    type##_init(object)
#define RESULT(type, object)          \
    type* object = AT_PAGE_END(type); \
    object->struct_size = sizeof(type)

/* A MODEL of two buffers and one parameter, on a group of one rank. */
static float values[4], gradient[4], running[2][4];
static const int64_t shape[1] = {4};

static ddp_group* lone_group(const char* backend) {
    DEFAULTS(ddp_group_options, options);
    ddp_group* group = NULL;
    options->rank = 0;
    options->world_size = 1;
    options->backend = backend;
    CALL(ddp_group_create(options, &group, &error));
    return group;
}

static void describe(ddp_param_desc* desc, const char* name, float* data) {
    desc->name = name;
    desc->shape = shape;
    desc->ndim = 1;
    desc->data = data;
}

static uint32_t flags;
static ddp_context* model(ddp_group* group) {
    DEFAULTS(ddp_context_options, options);
    DEFAULTS(ddp_param_desc, weight);
    ddp_context* context = NULL;
    ddp_param param = -1;
    options->flags = flags;
    CALL(ddp_context_create(group, options, &context, &error));
    describe(weight, "weight", values);
    weight->grad = gradient;
    CALL(ddp_register_param(context, weight, &param, &error));
    for (int i = 0; i < 2; ++i) {
        DEFAULTS(ddp_param_desc, buffer);
        describe(buffer, i == 0 ? "mean" : "variance", running[i]);
        CALL(ddp_register_buffer(context, buffer, &error));
    }
    CALL(ddp_commit(context, &error));
    return context;
}

static void step(ddp_context* context) {
    CALL(ddp_step_begin(context, &error));
    gradient[3] = 5;
    CALL(ddp_grad_ready(context, 0, &error));
    CALL(ddp_finalize(context, &error));
    CHECK(gradient[3] == 5);
}

/* The calls of a test on a model. */
static void with_model(const char* backend, void (*use)(ddp_context*)) {
    ddp_group* group = lone_group(backend);
    ddp_context* context = model(group);
    if (use) use(context);
    step(context);
    ddp_context_free(context);
    ddp_group_free(group);
}

static ddp_store* file_store(void) {
    DEFAULTS(ddp_store_options, options);
    ddp_store* store = NULL;
    char uri[1024];
    snprintf(uri, sizeof uri, "file://%s/store-%d", getenv("TMPDIR"), (int)getpid());
    options->uri = uri;
    CALL(ddp_store_create(options, &store, &error));
    return store;
}

/* THE STRUCTS, in the order of the headers. */
static void outer(ddp_context* context) {
    const int64_t periods[1] = {1};
    ddp_averager* averager = NULL;
    DEFAULTS(ddp_outer_options, options);
    CALL(ddp_averager_create(context, periods, NULL, 1, 0, &averager, &error));
    options->momentum = 0.5;
    CALL(ddp_averager_set_outer(averager, options, &error));
    CALL(ddp_averager_set_fragments(averager, (const int32_t[]){0}, 1, &error));
    CALL(ddp_averager_step(averager, NULL, &error));
    CALL(ddp_averager_go_back(averager, &error));
    ddp_averager_free(averager);
}
static void use_ddp_outer_options(void) {
    with_model(NULL, outer);
}

static int runs;
static ddp_status create(const ddp_backend_host* host, void** transport,
                         ddp_backend_failure* failure) {
    (void)failure;
    CHECK(host->struct_size > offsetof(ddp_backend_host, log) && host->world_size == 1);
    *transport = &runs;
    return DDP_OK;
}
static void destroy(void* transport) {
    (void)transport;
}
static uint32_t capabilities(void* transport) {
    (void)transport;
    return 0;
}
static ddp_status run(void* transport, const ddp_collective* collective,
                      ddp_backend_failure* failure) {
    (void)transport, (void)failure;
    CHECK(collective->struct_size > offsetof(ddp_collective, timeout_ms));
    if (collective->send && collective->count > 0 && collective->send != collective->recv)
        memcpy(collective->recv, collective->send,
               collective->count * ddp_dtype_size(collective->dtype));
    ++runs;
    return DDP_OK;
}
static void use_ddp_backend(void) {
    ddp_backend* backend = AT_PAGE_END(ddp_backend);
    memset(backend, 0, sizeof *backend);
    SET_LATER(backend); /* functions that this libddp does not call */
    backend->struct_size = sizeof *backend;
    backend->abi_version = DDP_BACKEND_ABI_VERSION;
    backend->name = "of-the-consumer";
    backend->create = create;
    backend->destroy = destroy;
    backend->capabilities = capabilities;
    backend->abort = destroy;
    backend->run = run;
    CALL(ddp_backend_register(backend, &error));
    with_model(backend->name, NULL);
    CHECK(runs > 0);
}
static void use_ddp_backend_host(void) {} /* by ddp_backend */
static void use_ddp_collective(void) {}

static void use_ddp_context_options(void) {
    with_model(NULL, NULL);
}
static void use_ddp_param_desc(void) {
    with_model(NULL, NULL);
}
static void use_ddp_group_options(void) {
    ddp_group_free(lone_group(NULL));
}

static void use_ddp_elastic_options(void) {
    ddp_store* store = file_store();
    DEFAULTS(ddp_group_options, group);
    DEFAULTS(ddp_elastic_options, options);
    RESULT(ddp_elastic_step, now);
    ddp_elastic* elastic = NULL;
    group->store = store;
    options->group = group;
    options->min_world = options->max_world = 1;
    CALL(ddp_elastic_create(options, &elastic, &error));
    ddp_context* context = model(ddp_elastic_group(elastic));
    CALL(ddp_elastic_add_context(elastic, context, &error));
    CALL(ddp_elastic_begin(elastic, now, &error));
    CHECK(now->struct_size == sizeof *now);
    CHECK(now->step == 0 && now->roster >= 1 && now->rank == 0 && now->world_size == 1 &&
          now->leaving == 0);
    CHECK_LATER(now);
    CALL(ddp_elastic_leave(elastic, &error));
    ddp_context_free(context);
    ddp_elastic_free(elastic);
    ddp_store_free(store);
}
static void use_ddp_elastic_step(void) {} /* by ddp_elastic_options */

static void use_ddp_environment(void) {
    RESULT(ddp_environment, environment);
    setenv("RANK", "2", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_RANK", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    CALL(ddp_environment_get(environment, &error));
    CHECK(environment->struct_size == sizeof *environment);
    CHECK(environment->rank == 2 && environment->world_size == 4);
    CHECK(environment->local_rank == 1 && environment->local_world_size == 2 &&
          environment->restart == 0);
    CHECK_LATER(environment);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static int hooks, buffer_hooks;
static ddp_status hook(void* user_data, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                       ddp_error** e) {
    (void)user_data, (void)group, (void)work, (void)e;
    RESULT(ddp_tensor, tensor);
    CALL(ddp_bucket_gradient(bucket, 0, tensor, &error));
    CHECK(tensor->struct_size == sizeof *tensor);
    CHECK(tensor->data && tensor->ndim == 1 && tensor->shape[0] == 4 && tensor->count == 4 &&
          tensor->dtype == DDP_F32);
    CHECK_LATER(tensor);
    ++hooks;
    return DDP_OK;
}
static ddp_status buffer_hook(void* user_data, ddp_group* group, const ddp_tensor* const* buffers,
                              size_t count, ddp_error** e) {
    (void)user_data, (void)group, (void)e;
    CHECK(count == 2);
    for (size_t i = 0; i < count; ++i)
        CHECK(buffers[i]->data == running[i] && buffers[i]->count == 4);
    ++buffer_hooks;
    return DDP_OK;
}
static void tensors(ddp_context* context) {
    CALL(ddp_set_comm_hook(context, hook, NULL, NULL, &error));
    CALL(ddp_set_buffer_hook(context, buffer_hook, NULL, NULL, &error));
    step(context);
}
static void use_ddp_tensor(void) {
    with_model(NULL, tensors);
    CHECK(hooks == 2 && buffer_hooks == 1);
}

static void states(ddp_context* context) {
    ddp_optimizer* optimizer = NULL;
    RESULT(ddp_optimizer_state, state);
    CALL(ddp_optimizer_create(context, "adamw", "lr=0.1", &optimizer, &error));
    CHECK(ddp_optimizer_state_count(optimizer) == 3);
    CALL(ddp_optimizer_state_get(optimizer, 1, state, &error));
    CHECK(state->struct_size == sizeof *state);
    CHECK(state->param == 0 && state->first == 0 && state->count == 4);
    CHECK(strcmp(state->name, "exp_avg_sq") == 0);
    CHECK_LATER(state);
    step(context);
    CALL(ddp_optimizer_set(optimizer, -1, "lr", 0.2, &error));
    CALL(ddp_optimizer_step(optimizer, 1, &error));
    CHECK(ddp_optimizer_in_step(optimizer, 1, &error) == DDP_ERROR_INVALID_STATE);
    ddp_error_free(error);
    ddp_optimizer_free(optimizer);
}
static void use_ddp_optimizer_state(void) {
    with_model(NULL, states);
}

static void pieces(ddp_context* context) {
    RESULT(ddp_piece, piece);
    CHECK(ddp_piece_count(context) == 1);
    CALL(ddp_piece_get(context, 0, piece, &error));
    CHECK(piece->struct_size == sizeof *piece);
    CHECK(piece->param == 0 && piece->first == 0 && piece->count == 4 && piece->value == values);
    CHECK_LATER(piece);
    step(context);
    CALL(ddp_publish(context, &error));
    CALL(ddp_wait_value(context, 0, &error));
}
static void use_ddp_piece(void) {
    flags = DDP_CONTEXT_SHARD;
    with_model(NULL, pieces);
    flags = 0;
}

static void stats(ddp_context* context) {
    RESULT(ddp_stats, s);
    step(context);
    CALL(ddp_stats_get(context, s, &error));
    CHECK(s->struct_size == sizeof *s);
    CHECK(s->steps == 1 && s->param_count == 1 && s->bucket_count == 1 &&
          s->param_bytes == sizeof gradient);
    CHECK_LATER(s);
}
static void use_ddp_stats(void) {
    with_model(NULL, stats);
}

static void use_ddp_store_options(void) {
    ddp_store* store = file_store();
    CALL(ddp_store_set(store, "key", "value", 5, &error));
    ddp_store_free(store);
}

int main(void) {
#define INIT(type) init_##type();
#define USE(type)    \
    current = #type; \
    use_##type();
#include "structs.inc"
    return 0;
}
