/* A rank that trains until it dies or another does, for failure_test.py, or that meets the others,
 * for secret_test.py.
 *
 *     ddprun -n 4 rank VICTIM SIGNAL     rank VICTIM sends itself SIGNAL in the fifth step; 0: it exits with status 5
 *     ddprun -n 4 rank meet FILE         says that all ranks have met, and ends when FILE is there, at most 60 s later
 *
 * The others report the error and exit with status 3, or abort when ABORT is in their environment.
 */
#define _POSIX_C_SOURCE 200809L
#include <ddp/ddp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void end(const char* message) {
    fprintf(stderr, "%s\n", message);
    if (getenv("ABORT")) abort();
    exit(3);
}

static void die(int number) {
    if (number == 0) exit(5);
    signal(number, SIG_DFL);
    raise(number);
}

static void stay_until(const char* path) {
    const struct timespec pause = {0, 10000000};
    for (int i = 0; i < 6000 && access(path, F_OK) != 0; ++i) nanosleep(&pause, NULL);
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    float value[64] = {1};
    ddp_error* error = NULL;
    ddp_group* group = NULL;
    if (ddp_group_create(NULL, &group, &error) != DDP_OK) end(ddp_error_message(error));
    const int meets = strcmp(argv[1], "meet") == 0;
    if (meets) {
        if (ddp_barrier(group, NULL, &error) != DDP_OK) end(ddp_error_message(error));
        printf("%d of %d has met\n", ddp_group_rank(group), ddp_group_world_size(group));
        fflush(stdout);
        stay_until(argv[2]);
    }
    for (int step = 0; step < 1000000 && !meets; ++step) {
        if (step == 5 && ddp_group_rank(group) == atoi(argv[1])) die(atoi(argv[2]));
        if (ddp_allreduce(group, NULL, value, 64, DDP_F32, DDP_AVG, NULL, &error) != DDP_OK)
            end(ddp_error_message(error));
    }
    ddp_group_free(group);
    return 0;
}
