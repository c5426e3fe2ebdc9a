/* The best that TCP can do: so many bytes each way at once over several connections, without a
 * thread and without libddp.
 *
 *     tcp_streams listen ADDRESS PORT BYTES TIMES STREAMS     prints the milliseconds of the slower side, one a line
 *     tcp_streams connect ADDRESS PORT BYTES TIMES STREAMS
 *
 * An allreduce between two ranks sends half of its bytes each way to be reduced and half to be
 * gathered: as many bytes each way as it reduces.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16, TRIES = 2000 };

static void die(const char* what) {
    fprintf(stderr, "tcp_streams: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int opened(int is_listener, const struct sockaddr_in* address, int listener) {
    if (is_listener) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        return fd;
    }
    for (int i = 0; i < TRIES; ++i) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0) die("socket");
        if (connect(fd, (const struct sockaddr*)address, sizeof *address) == 0) return fd;
        close(fd);
        usleep(10000);
    }
    die("connect");
    return -1;
}

static void whole(int fd, void* data, size_t size, int sends) {
    char* at = data;
    while (size > 0) {
        ssize_t count = sends ? send(fd, at, size, MSG_NOSIGNAL) : recv(fd, at, size, 0);
        if (count <= 0) die(sends ? "send" : "recv");
        at += count;
        size -= (size_t)count;
    }
}

/* Sends a number, and returns the other side's: both go on at the same time. */
static double exchange(int fd, double value) {
    double theirs;
    whole(fd, &value, sizeof value, 1);
    whole(fd, &theirs, sizeof theirs, 0);
    return theirs;
}

static void both_ways(const int* fds, int streams, const char* out, char* in, size_t each) {
    size_t sent[MOST] = {0}, received[MOST] = {0};
    for (int left = 2 * streams; left > 0;) {
        struct pollfd waits[MOST];
        int moved = 0;
        for (int i = 0; i < streams; ++i) {
            if (sent[i] < each) {
                ssize_t count = send(fds[i], out + (size_t)i * each + sent[i], each - sent[i],
                                     MSG_DONTWAIT | MSG_NOSIGNAL);
                if (count < 0 && errno != EAGAIN) die("send");
                if (count > 0) moved = 1, left -= (sent[i] += (size_t)count) == each;
            }
            if (received[i] < each) {
                ssize_t count = recv(fds[i], in + (size_t)i * each + received[i],
                                     each - received[i], MSG_DONTWAIT);
                if (count == 0 || (count < 0 && errno != EAGAIN)) die("recv");
                if (count > 0) moved = 1, left -= (received[i] += (size_t)count) == each;
            }
            waits[i] = (struct pollfd){
                fds[i], (short)((sent[i] < each ? POLLOUT : 0) | (received[i] < each ? POLLIN : 0)),
                0};
        }
        if (!moved && left > 0) poll(waits, (nfds_t)streams, 1000);
    }
}

int main(int argc, char** argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: tcp_streams listen|connect ADDRESS PORT BYTES TIMES STREAMS\n");
        return 2;
    }
    const int is_listener = strcmp(argv[1], "listen") == 0, times = atoi(argv[5]),
              streams = atoi(argv[6]);
    const size_t bytes = strtoul(argv[4], NULL, 10),
                 each = bytes / (size_t)(streams > 0 ? streams : 1);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(argv[3]))};
    if (streams < 1 || streams > MOST || each == 0 ||
        inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
        return 2;
    alarm(600);
    int listener = -1;
    if (is_listener) {
        const int on = 1;
        listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, (struct sockaddr*)&address, sizeof address) != 0 ||
            listen(listener, MOST) != 0)
            die("listen");
    }
    int fds[MOST];
    for (int i = 0; i < streams; ++i) {
        const int on = 1;
        fds[i] = opened(is_listener, &address, listener);
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    char *out = malloc(bytes), *in = malloc(bytes);
    if (!out || !in) die("malloc");
    memset(out, 1, bytes);
    memset(in, 2, bytes);
    for (int i = -1; i < times; ++i) { /* the first is not counted */
        exchange(fds[0], 0);
        const double start = now_ms();
        both_ways(fds, streams, out, in, each);
        const double mine = now_ms() - start, theirs = exchange(fds[0], mine);
        if (is_listener && i >= 0) printf("%.4f\n", mine > theirs ? mine : theirs);
    }
    free(out);
    free(in);
    return 0;
}
