/* One rank of a scenario of storm.py: joins a group, runs a few collectives, and says on standard
 * output how that went.
 *
 *     storm_worker rank=1 world=3 init=tcp://127.0.0.1:2000 timeout=3000 backend=shm limit=nofile:7
 *     point=connect:2:kill
 *
 * It writes "ready" when it is about to join and waits for a line on standard input. The result is
 * one line of JSON. Then it waits for another line (hold=0: it does not), frees the group and exits
 * with 0.
 *
 * limit=WHAT:N   sets a resource limit just before the group is created: nofile (N descriptors are left), as and data (N KiB more
 *                than now), nproc (N tasks of this user), fsize (N bytes), memlock (N bytes)
 * point=F:N:DO   at the Nth call of the C library's function F after that: kill, stop, or the name of an error with which it fails
 * uid=N          becomes this user first, if it may: root knows no limit of tasks
 *
 * "storm_worker environment" prints DDP_STORE and DDP_SECRET and sleeps: what a launcher starts to
 * keep its store open.
 */
#define _GNU_SOURCE
#include <ddp/ddp.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* ---- a fault at an exact point: the program's own definitions stand before the C library's */

static struct {
    const char* function; /* NULL: none */
    int countdown_from;
    const char* action;
    atomic_int calls;
    atomic_int armed;
} point;

/* The sanitizers have definitions of their own. */
#ifndef DDP_SANITIZED
static int error_of(const char* name) {
    static const struct {
        const char* name;
        int value;
    } known[] = {{"EMFILE", EMFILE},
                 {"EAGAIN", EAGAIN},
                 {"ENOMEM", ENOMEM},
                 {"ENOBUFS", ENOBUFS},
                 {"ENOSPC", ENOSPC}};
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
        if (strcmp(known[i].name, name) == 0) return known[i].value;
    fprintf(stderr, "storm_worker: no action '%s'\n", name);
    exit(2);
}

/* The error with which this call has to fail, or 0. */
static int strike(const char* function) {
    if (!atomic_load(&point.armed) || strcmp(point.function, function) != 0) return 0;
    if (atomic_fetch_add(&point.calls, 1) + 1 != point.countdown_from) return 0;
    if (strcmp(point.action, "kill") == 0) kill(getpid(), SIGKILL);
    if (strcmp(point.action, "stop") == 0) return kill(getpid(), SIGSTOP), 0;
    return error_of(point.action);
}

#define VISIBLE __attribute__((visibility("default")))
#define INTERPOSE(result, name, parameters, arguments)       \
    VISIBLE result name parameters {                         \
        static result(*real) parameters;                     \
        if (!real) *(void**)&real = dlsym(RTLD_NEXT, #name); \
        int error = strike(#name);                           \
        if (error) return errno = error, -1;                 \
        return real arguments;                               \
    }
INTERPOSE(int, socket, (int family, int type, int protocol), (family, type, protocol))
INTERPOSE(int, connect, (int fd, const struct sockaddr* to, socklen_t size), (fd, to, size))
INTERPOSE(int, bind, (int fd, const struct sockaddr* at, socklen_t size), (fd, at, size))
INTERPOSE(int, accept4, (int fd, struct sockaddr* from, socklen_t* size, int flags),
          (fd, from, size, flags))
INTERPOSE(int, listen, (int fd, int backlog), (fd, backlog))
INTERPOSE(ssize_t, send, (int fd, const void* data, size_t size, int flags),
          (fd, data, size, flags))
INTERPOSE(ssize_t, sendmsg, (int fd, const struct msghdr* message, int flags), (fd, message, flags))
INTERPOSE(ssize_t, recvmsg, (int fd, struct msghdr* message, int flags), (fd, message, flags))
INTERPOSE(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size))
INTERPOSE(ssize_t, pwrite64, (int fd, const void* data, size_t size, off64_t at),
          (fd, data, size, at))
INTERPOSE(int, memfd_create, (const char* name, unsigned flags), (name, flags))
INTERPOSE(int, epoll_create1, (int flags), (flags))
INTERPOSE(int, eventfd, (unsigned value, int flags), (value, flags))
INTERPOSE(int, ftruncate64, (int fd, off64_t size), (fd, size))

VISIBLE int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*),
                           void* data) {
    static int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, "pthread_create");
    int error = strike("pthread_create");
    return error ? error : real(thread, how, run, data);
}
#endif

static void set_point(char* text) {
    char* number = strchr(text, ':');
    char* action = number ? strchr(number + 1, ':') : NULL;
    if (!action) exit(2);
    *number++ = *action++ = '\0';
    point.function = text;
    point.countdown_from = atoi(number);
    point.action = action;
}

/* ---- limits */

static rlim_t statm(int field) {
    unsigned long pages[7] = {0};
    FILE* file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    for (int i = 0; i < 7; ++i)
        if (fscanf(file, "%lu", &pages[i]) != 1) break;
    fclose(file);
    return (rlim_t)pages[field] * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* The limit with which exactly so many descriptors can still be had. */
static rlim_t descriptors(long left) {
    int fd = 0;
    for (; left >= 0; ++fd)
        if (fcntl(fd, F_GETFD) < 0 && left-- == 0) break;
    return (rlim_t)fd;
}

static void set_limit(const char* text) {
    const char* colon = strchr(text, ':');
    if (!colon) exit(2);
    const size_t n = (size_t)(colon - text);
    const rlim_t value = (rlim_t)atoll(colon + 1);
    struct rlimit limit = {value, value};
    int what;
    if (strncmp(text, "nofile", n) == 0)
        what = RLIMIT_NOFILE, limit.rlim_cur = limit.rlim_max = descriptors((long)value);
    else if (strncmp(text, "as", n) == 0)
        what = RLIMIT_AS, limit.rlim_cur = limit.rlim_max = statm(0) + value * 1024;
    else if (strncmp(text, "data", n) == 0)
        what = RLIMIT_DATA, limit.rlim_cur = limit.rlim_max = statm(5) + value * 1024;
    else if (strncmp(text, "nproc", n) == 0)
        what = RLIMIT_NPROC;
    else if (strncmp(text, "fsize", n) == 0)
        what = RLIMIT_FSIZE;
    else if (strncmp(text, "memlock", n) == 0)
        what = RLIMIT_MEMLOCK;
    else
        exit(2);
    if (setrlimit((__rlimit_resource_t)what, &limit) != 0) perror("storm_worker: setrlimit");
}

/* ---- the result */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static char line[16384]; /* memory may be short when it is written */

static int escape(char* to, size_t room, const char* text) {
    size_t used = 0;
    for (; *text && used + 8 < room; ++text) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            to[used++] = '\\', to[used++] = (char)c;
        else if (c < 0x20)
            used += (size_t)snprintf(to + used, room - used, "\\u%04x", c);
        else
            to[used++] = (char)c;
    }
    to[used] = '\0';
    return (int)used;
}

static void put(size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(STDOUT_FILENO, line + done, size - done);
        if (n <= 0) _exit(3);
        done += (size_t)n;
    }
}

/* at: the call that failed, "all" if none did. ms: what that call took; without a failure, the
 * longest. */
static void say(int rank, const char* at, ddp_status status, ddp_error* error, double ms) {
    int n = snprintf(line, sizeof line,
                     "{\"rank\": %d, \"at\": \"%s\", \"status\": \"%s\", \"object\": %s, \"code\": "
                     "\"%s\", \"named\": %d, \"ms\": %.1f, \"message\": \"",
                     rank, at, ddp_status_name(status), error ? "true" : "false",
                     ddp_status_name(ddp_error_code(error)), (int)ddp_error_rank(error), ms);
    n += escape(line + n, sizeof line - (size_t)n - 8, ddp_error_message(error));
    n += snprintf(line + n, sizeof line - (size_t)n, "\"}\n");
    put((size_t)n);
}

static void wait_for_line(void) {
    char c = 0;
    while (c != '\n' && read(STDIN_FILENO, &c, 1) == 1) continue;
}

static void tell_where(int number) {
    void* frames[64];
    const char text[] = "storm_worker: ended by a signal at\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(4);
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    signal(number, SIG_DFL);
    raise(number);
}

/* ---- the rank */

static struct {
    ddp_group* group;
    ddp_error* error;
    ddp_status status;
    const char* at;
    double longest, ms;
} me;

static int timed(const char* at, double since, ddp_status status) {
    me.ms = now() - since;
    if (me.ms > me.longest) me.longest = me.ms;
    me.at = at;
    me.status = status;
    return status == DDP_OK ? 0 : -1;
}

static int wrong(const char* at) {
    me.at = at;
    me.status = DDP_ERROR_INTERNAL;
    me.error = ddp_error_create(DDP_ERROR_INTERNAL, "storm_worker: wrong values");
    return -1;
}

static int communicate(int rank, int world, size_t count) {
    float* data = malloc(count * sizeof *data);
    int32_t* ranks = malloc((size_t)world * sizeof *ranks);
    int failed = -1;
    double since = now();
    if (!data || !ranks) {
        me.at = "allreduce", me.status = DDP_ERROR_OUT_OF_MEMORY,
        me.error = ddp_error_create(me.status, "storm_worker: no memory");
        goto end;
    }
    for (size_t i = 0; i < count; ++i) data[i] = (float)(rank + 1);
    if (timed("allreduce", since,
              ddp_allreduce(me.group, NULL, data, count, DDP_F32, DDP_SUM, NULL, &me.error)))
        goto end;
    for (size_t i = 0; i < count; ++i)
        if (data[i] != (float)(world * (world + 1) / 2)) {
            wrong("allreduce");
            goto end;
        }
    int32_t mine = rank;
    since = now();
    if (timed("allgather", since,
              ddp_allgather(me.group, &mine, ranks, 1, DDP_I32, NULL, &me.error)))
        goto end;
    for (int r = 0; r < world; ++r)
        if (ranks[r] != r) {
            wrong("allgather");
            goto end;
        }
    since = now();
    failed = timed("barrier", since, ddp_barrier(me.group, NULL, &me.error));
end:
    free(data);
    free(ranks);
    return failed;
}

static void show_environment(void) {
    const char* store = getenv("DDP_STORE");
    const char* secret = getenv("DDP_SECRET");
    put((size_t)snprintf(line, sizeof line, "{\"store\": \"%s\", \"secret\": \"%s\"}\n",
                         store ? store : "", secret ? secret : ""));
    for (;;) pause();
}

int main(int argc, char** argv) {
    ddp_group_options options;
    const char* limit = NULL;
    int hold = 1, uid = 0;
    size_t count = 1000;
    ddp_group_options_init(&options);
    if (argc == 2 && strcmp(argv[1], "environment") == 0) show_environment();
    for (int i = 1; i < argc; ++i) {
        char* value = strchr(argv[i], '=');
        if (!value) return 2;
        *value++ = '\0';
        const char* name = argv[i];
        if (strcmp(name, "rank") == 0)
            options.rank = atoi(value);
        else if (strcmp(name, "world") == 0)
            options.world_size = atoi(value);
        else if (strcmp(name, "init") == 0)
            options.init_method = value;
        else if (strcmp(name, "backend") == 0)
            options.backend = value;
        else if (strcmp(name, "options") == 0)
            options.backend_options = value;
        else if (strcmp(name, "timeout") == 0)
            options.timeout_ms = atoll(value);
        else if (strcmp(name, "name") == 0)
            options.group_name = value;
        else if (strcmp(name, "secret") == 0)
            options.secret = value;
        else if (strcmp(name, "flags") == 0)
            options.flags = (uint32_t)atoi(value);
        else if (strcmp(name, "groups") == 0)
            options.round_robin = (uint32_t)atoi(value);
        else if (strcmp(name, "count") == 0)
            count = (size_t)atoll(value);
        else if (strcmp(name, "limit") == 0)
            limit = value;
        else if (strcmp(name, "point") == 0)
            set_point(value);
        else if (strcmp(name, "hold") == 0)
            hold = atoi(value);
        else if (strcmp(name, "uid") == 0)
            uid = atoi(value);
        else
            return 2;
    }
    if (uid && geteuid() == 0 && (setgid((gid_t)uid) != 0 || setuid((uid_t)uid) != 0)) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing survives the test program, however that ends */
#ifndef DDP_SANITIZED
    void* first[1];
    backtrace(first, 1); /* loads what it needs */
    signal(SIGABRT, tell_where);
    signal(SIGSEGV, tell_where);
#else
    (void)tell_where;
#endif
    strcpy(line, "ready\n");
    put(6);
    wait_for_line();
    if (limit) set_limit(limit);
    if (point.function) atomic_store(&point.armed, 1);

    double since = now();
    int failed = timed("create", since, ddp_group_create(&options, &me.group, &me.error));
    const int rank = failed ? options.rank : ddp_group_rank(me.group);
    if (!failed) failed = communicate(rank, ddp_group_world_size(me.group), count);
    atomic_store(&point.armed, 0);
    say(rank, failed ? me.at : "all", me.status, me.error, failed ? me.ms : me.longest);
    if (hold) wait_for_line();
    since = now();
    ddp_error_free(me.error);
    ddp_group_free(me.group);
    put((size_t)snprintf(line, sizeof line, "freed in %.1f ms\n", now() - since));
    return 0;
}
