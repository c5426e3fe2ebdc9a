/* settings.h: the command line of the mnist example. */
#ifndef EXAMPLES_SETTINGS_H
#define EXAMPLES_SETTINGS_H

#include <stdint.h>

typedef struct settings {
    const char* data; /* folder with the IDX files */
    int epochs;
    int batch; /* of all ranks together */
    float lr;
    float momentum;
    uint64_t seed;
    int view; /* gradients live in libddp's buckets */
    int compare_local;
    const char* hook; /* communication hook and its options, as in ddp_use_hook */
    const char* hook_options;
    int average_every; /* steps between averages of the models, for post_local_sgd; 0: never */
    const char* save;  /* where rank 0 writes its weights; NULL: nowhere */
} settings;

/* Ends the process with status 2 and a message when the command line is wrong, with status 0 after
 * --help. */
settings settings_parse(int argc, char** argv);

#endif /* EXAMPLES_SETTINGS_H */
