/* Options, faults and time of elastic workers: where they die, stop, or are told to leave. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static struct {
    const char *die, *stop;
    long die_at, die_after, stop_at;
} fault = {.die = "", .stop = "", .die_at = 1, .stop_at = 1};

static volatile sig_atomic_t told_to_leave;

static void on_sigterm(int number) {
    (void)number;
    told_to_leave = 1;
}

static void nap_us(long us) {
    const struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void die(int signal) {
    (void)signal;
    raise(SIGKILL);
}

static void stop_at(const char* place) {
    if (strcmp(place, fault.stop) != 0 || --fault.stop_at != 0) return;
    raise(SIGSTOP);
    printf("goes on\n");
}

/* Where die=PLACE may end the process, and stop=PLACE stop it. */
static void at(const char* place) {
    stop_at(place);
    if (strcmp(place, fault.die) != 0 || --fault.die_at != 0) return;
    if (fault.die_after <= 0) die(0);
    const struct itimerval timer = {{0, 0}, {fault.die_after / 1000000, fault.die_after % 1000000}};
    signal(SIGALRM, die);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* An option that is a number, or a text. */
typedef struct option {
    const char* name; /* with '=' */
    long* number;
    const char** text;
} option;

static int take_from(const char* argument, const option* options, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const size_t length = strlen(options[i].name);
        if (strncmp(argument, options[i].name, length) != 0) continue;
        if (options[i].text) *options[i].text = argument + length;
        if (options[i].number) *options[i].number = atol(argument + length);
        return 1;
    }
    return 0;
}

/* die, die-at, die-after, stop and stop-at. */
static int take_fault(const char* argument) {
    const option options[] = {{"die-at=", &fault.die_at, NULL},
                              {"die-after=", &fault.die_after, NULL},
                              {"stop-at=", &fault.stop_at, NULL},
                              {"die=", NULL, &fault.die},
                              {"stop=", NULL, &fault.stop}};
    return take_from(argument, options, sizeof options / sizeof *options);
}
