/* The same as `ddp-bench allreduce`, through MPI_Allreduce: f32 in place, in memory of
 * MPI_Alloc_mem. Rank 0 prints a row for each size as ddp-bench does. contenders.py compiles it and
 * runs it under mpirun.
 *
 * usage: mpi_allreduce SECONDS ITERATIONS SIZE...      ITERATIONS: 0 for as many as fit into SECONDS, at least 10
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 3, FEWEST = 10, MOST = 20000 };

static double reduce_ms(float* data, int count) {
    const double start = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return 1e3 * (MPI_Wtime() - start);
}

/* Ones become the world size; then zeros, which stay zeros. */
static void check(float* data, int count, int world) {
    for (int i = 0; i < count; ++i) data[i] = 1.0f;
    reduce_ms(data, count);
    for (int i = 0; i < count; ++i) {
        if (data[i] == (float)world) continue;
        fprintf(stderr, "MPI_Allreduce gave a wrong sum\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(data, 0, (size_t)count * sizeof *data);
}

/* Rank 0's number, on every rank. */
static long agree(double milliseconds, double seconds, long iterations) {
    const double fit = 1e3 * seconds / (milliseconds > 1e-6 ? milliseconds : 1e-6);
    long count = fit < FEWEST ? FEWEST : fit > MOST ? MOST : (long)fit;
    if (iterations > 0) count = iterations;
    MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    return count;
}

static int compare(const void* a, const void* b) {
    const double left = *(const double*)a, right = *(const double*)b;
    return (left > right) - (left < right);
}

/* The percentile of a sorted series, interpolated between neighbours. */
static double percentile(const double* series, long count, double fraction) {
    const double position = fraction * (double)(count - 1);
    const long below = (long)position, above = below + 1 < count ? below + 1 : below;
    return series[below] + (position - (double)below) * (series[above] - series[below]);
}

static void measure_size(size_t bytes, double seconds, long iterations) {
    int rank, world;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    const int count = bytes < sizeof(float) ? 1 : (int)(bytes / sizeof(float));
    float* data;
    MPI_Alloc_mem((MPI_Aint)((size_t)count * sizeof *data), MPI_INFO_NULL, &data);
    check(data, count, world);
    double last = 0;
    for (int i = 0; i < WARM_UP; ++i) last = reduce_ms(data, count);
    const long times = agree(last, seconds, iterations);
    double* series = malloc((size_t)times * sizeof *series);
    if (series == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = 0; i < times; ++i) series[i] = reduce_ms(data, count);
    /* The slowest rank's time of each iteration. */
    MPI_Allreduce(MPI_IN_PLACE, series, (int)times, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(series, (size_t)times, sizeof *series, compare);
    if (rank == 0) {
        printf(
            "{\"name\": \"mpi-allreduce\", \"world\": %d, \"backend\": \"mpi\", \"bytes\": %zu, "
            "\"iters\": %ld, \"median_ms\": %.6g, \"p10_ms\": %.6g, \"p90_ms\": %.6g, \"dtype\": "
            "\"f32\"}\n",
            world, (size_t)count * sizeof *data, times, percentile(series, times, 0.5),
            percentile(series, times, 0.1), percentile(series, times, 0.9));
        fflush(stdout);
    }
    free(series);
    MPI_Free_mem(data);
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    for (int i = 3; i < argc; ++i)
        measure_size(strtoull(argv[i], NULL, 10), atof(argv[1]), atol(argv[2]));
    MPI_Finalize();
    return 0;
}
