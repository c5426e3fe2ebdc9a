#include "idx.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

/* Far above any MNIST-like set, and small enough that a damaged header cannot make the sizes
 * overflow. */
enum { MAX_IMAGES = 10000000, MAX_SIDE = 4096, MAX_PATH = 4096 };

enum { MAGIC_LABELS = 0x801, MAGIC_IMAGES = 0x803 };

/* gzopen reads plain files as they are, so the same code serves both kinds. */
static gzFile open_idx(char* path, const char* dir, const char* name, const char* kind) {
    static const char* const suffixes[] = {".gz", ""};
    for (int i = 0; i < 2; ++i) {
        int length = snprintf(path, MAX_PATH, "%s/%s-%s%s", dir, name, kind, suffixes[i]);
        gzFile file = length < MAX_PATH ? gzopen(path, "rb") : NULL;
        if (file != NULL) return file;
    }
    fprintf(stderr, "cannot open %s, nor the same with .gz\n", path);
    return NULL;
}

/* IDX numbers are big-endian. Returns -1 where the file ends. */
static int64_t read_u32(gzFile file) {
    unsigned char bytes[4];
    if (gzread(file, bytes, 4) != 4) return -1;
    return ((int64_t)bytes[0] << 24) | ((int64_t)bytes[1] << 16) | ((int64_t)bytes[2] << 8) |
           (int64_t)bytes[3];
}

static int read_labels(gzFile file, digits* set) {
    if (read_u32(file) != MAGIC_LABELS || read_u32(file) != set->count) return -1;
    set->labels = malloc((size_t)set->count);
    if (set->labels == NULL || gzread(file, set->labels, (unsigned)set->count) != set->count)
        return -1;
    for (int i = 0; i < set->count; ++i) {
        if (set->labels[i] > 9) return -1;
    }
    return 0;
}

static int read_images(gzFile file, digits* set) {
    if (read_u32(file) != MAGIC_IMAGES) return -1;
    int64_t count = read_u32(file), rows = read_u32(file), columns = read_u32(file);
    if (count < 1 || count > MAX_IMAGES || rows < 1 || rows > MAX_SIDE || columns < 1 ||
        columns > MAX_SIDE)
        return -1;
    set->count = (int)count;
    set->pixels = (int)(rows * columns);
    set->images = malloc((size_t)count * (size_t)set->pixels * sizeof(float));
    unsigned char* row = malloc((size_t)set->pixels);
    int status = set->images == NULL || row == NULL ? -1 : 0;
    for (int64_t i = 0; i < count && status == 0; ++i) {
        if (gzread(file, row, (unsigned)set->pixels) != set->pixels) status = -1;
        for (int p = 0; p < set->pixels && status == 0; ++p) {
            set->images[i * set->pixels + p] = (float)row[p] / 255.0f;
        }
    }
    free(row);
    return status;
}

static int load_file(digits* set, const char* dir, const char* name, const char* kind,
                     int (*read)(gzFile file, digits* set)) {
    char path[MAX_PATH];
    gzFile file = open_idx(path, dir, name, kind);
    if (file == NULL) return -1;
    int status = read(file, set);
    gzclose(file);
    if (status != 0)
        fprintf(stderr, "%s is not the IDX file that it should be, or memory is exhausted\n", path);
    return status;
}

int digits_load(digits* set, const char* dir, const char* name) {
    *set = (digits){0, 0, NULL, NULL};
    if (load_file(set, dir, name, "images-idx3-ubyte", read_images) == 0 &&
        load_file(set, dir, name, "labels-idx1-ubyte", read_labels) == 0) {
        return 0;
    }
    digits_free(set);
    return -1;
}

void digits_free(digits* set) {
    free(set->images);
    free(set->labels);
    *set = (digits){0, 0, NULL, NULL};
}
