#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "idx.h"

static const char usage[] =
    "usage: mnist [--data DIR] [--epochs N] [--batch N] [--lr X] [--momentum X] [--seed N]\n"
    "             [--view | --copy] [--compare-local]\n"
    "             [--hook NAME] [--hook-options K=V,...] [--average-every N] [--save FILE]\n"
    "  --data DIR        folder with the four IDX files of MNIST, plain or .gz "
    "(default " MNIST_DATA_DIR
    ")\n"
    "  --epochs N        passes over the training digits (default 10)\n"
    "  --batch N         digits in a global batch, divided among the ranks (default 64)\n"
    "  --lr X            learning rate (default 0.05)\n"
    "  --momentum X      of the optimizer (default 0.9)\n"
    "  --seed N          of the first weights and of the order of the digits (default 1)\n"
    "  --view, --copy    gradients live in libddp's buckets (default), or in the model's own "
    "memory\n"
    "  --compare-local   train the same batches without libddp afterwards and compare the weights\n"
    "  --hook NAME       communication hook, with --hook-options K=V,... (default allreduce)\n"
    "  --average-every N average the models every N steps, for --hook post_local_sgd (default 0: "
    "never)\n"
    "  --save FILE       rank 0 writes its weights, as the machine's 32-bit floats\n";

static void refuse(const char* why, const char* what) {
    fprintf(stderr, "mnist: %s %s\n%s", why, what, usage);
    exit(2);
}

static double number(const char* option, const char* text, double low, double high) {
    char* end = NULL;
    const double value = text == NULL ? 0.0 : strtod(text, &end);
    if (text == NULL || end == text || *end != '\0' || !(value >= low && value <= high)) {
        refuse("a number in its range must follow", option);
    }
    return value;
}

settings settings_parse(int argc, char** argv) {
    settings s = {MNIST_DATA_DIR, 10, 64, 0.05f, 0.9f, 1, 1, 0, "allreduce", "", 0, NULL};
    for (int i = 1; i < argc; ++i) {
        const char* name = argv[i];
        if (strcmp(name, "--help") == 0) {
            fputs(usage, stdout);
            exit(0);
        } else if (strcmp(name, "--view") == 0) {
            s.view = 1;
        } else if (strcmp(name, "--copy") == 0) {
            s.view = 0;
        } else if (strcmp(name, "--compare-local") == 0) {
            s.compare_local = 1;
        } else if (strcmp(name, "--data") == 0 && i + 1 < argc) {
            s.data = argv[++i];
        } else if (strcmp(name, "--hook") == 0 && i + 1 < argc) {
            s.hook = argv[++i];
        } else if (strcmp(name, "--hook-options") == 0 && i + 1 < argc) {
            s.hook_options = argv[++i];
        } else if (strcmp(name, "--save") == 0 && i + 1 < argc) {
            s.save = argv[++i];
        } else if (strcmp(name, "--average-every") == 0) {
            s.average_every = (int)number(name, argv[++i], 0, 1e9);
        } else if (strcmp(name, "--epochs") == 0) {
            s.epochs = (int)number(name, argv[++i], 1, 10000);
        } else if (strcmp(name, "--batch") == 0) {
            s.batch = (int)number(name, argv[++i], 1, 1e6);
        } else if (strcmp(name, "--lr") == 0) {
            s.lr = (float)number(name, argv[++i], 0, 100);
        } else if (strcmp(name, "--momentum") == 0) {
            s.momentum = (float)number(name, argv[++i], 0, 1);
        } else if (strcmp(name, "--seed") == 0) {
            s.seed = (uint64_t)number(name, argv[++i], 0, 9e15);
        } else {
            refuse("unknown option, or nothing follows", name);
        }
    }
    return s;
}
