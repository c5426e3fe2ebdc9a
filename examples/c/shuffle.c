/* shuffle.c: deals the samples of all ranks anew, as between two epochs. Each rank has read files of
 * its own; after this any sample may be on any rank.
 *
 *     ddprun -n 2 ./shuffle
 */
#define DDP_EXPERIMENTAL 1 /* all_to_all.h */

#include <ddp/ddp.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) \
    ((call) == DDP_OK ? (void)0 : (fprintf(stderr, "%s\n", ddp_error_message(error)), exit(1)))

int main(void) {
    ddp_error* error;
    ddp_group* group;
    CHECK(ddp_group_create(NULL, &group, &error));
    const int rank = ddp_group_rank(group);
    const size_t world = (size_t)ddp_group_world_size(group), mine = 1000;
    /* A sample is a number here: 0 to 999 on rank 0, 1,000 to 1,999 on rank 1. */
    uint64_t* const send_counts = calloc(world, sizeof *send_counts);
    uint64_t* const recv_counts = calloc(world, sizeof *recv_counts);
    size_t* const to = malloc(mine * sizeof *to);
    size_t* const place = calloc(world + 1, sizeof *place);
    int64_t* const send = malloc(mine * sizeof *send);
    srand((unsigned)rank + 1);
    for (size_t i = 0; i < mine; ++i) ++send_counts[to[i] = (size_t)rand() % world];
    for (size_t r = 0; r < world; ++r) place[r + 1] = place[r] + (size_t)send_counts[r];
    for (size_t i = 0; i < mine; ++i) send[place[to[i]]++] = (int64_t)(mine * (size_t)rank + i);

    /* First how many, then the samples. */
    CHECK(ddp_all_to_all(group, send_counts, recv_counts, 1, DDP_I64, NULL, &error));
    size_t count = 0;
    for (size_t r = 0; r < world; ++r) count += (size_t)recv_counts[r];
    int64_t* const recv = malloc((count + 1) * sizeof *recv);
    int64_t sum = 0;
    CHECK(
        ddp_all_to_allv(group, send, recv, send_counts, recv_counts, world, DDP_I64, NULL, &error));

    for (size_t i = 0; i < count; ++i) sum += recv[i];
    printf("rank %d: %zu samples, sum %lld, %llu of its own\n", rank, count, (long long)sum,
           (unsigned long long)recv_counts[rank]);
    free(send_counts), free(recv_counts), free(to), free(place), free(send), free(recv);
    ddp_group_free(group);
}
