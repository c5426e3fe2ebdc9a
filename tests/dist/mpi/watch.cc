#include "dist/mpi/watch.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace watch {
namespace {

std::mutex mutex;
Rule rule = Rule::kNone;
std::thread::id watcher;
std::vector<std::thread::id> threads;
std::string first_complaint;
std::atomic<std::size_t> call_count{0};
std::atomic<int> in_mpi{0};
thread_local bool inside_libddp = false;

void complain(const char* call, const char* what) {
    if (first_complaint.empty()) first_complaint = std::string(call) + ": " + what;
}

// A call by the module.
class Call {
public:
    explicit Call(const char* name) {
        ++call_count;
        const int already = in_mpi++;
        const std::lock_guard lock(mutex);
        const auto me = std::this_thread::get_id();
        if (rule == Rule::kCallersOnly) {
            if (!inside_libddp) complain(name, "on a thread that waits in no call of libddp");
            if (already > 0) complain(name, "while another thread is in MPI");
        }
        if (rule == Rule::kOneThread) {
            if (std::find(threads.begin(), threads.end(), me) == threads.end())
                threads.push_back(me);
            if (threads.size() > 1) complain(name, "on a second thread");
            if (me == watcher) complain(name, "on a thread of the program");
        }
    }
    ~Call() { --in_mpi; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
};

}  // namespace

void expect(Rule new_rule) {
    const std::lock_guard lock(mutex);
    rule = new_rule;
    watcher = std::this_thread::get_id();
    threads.clear();
    first_complaint.clear();
}

Inside::Inside() {
    inside_libddp = true;
}
Inside::~Inside() {
    inside_libddp = false;
}

OwnCall::OwnCall() {
    if (in_mpi++ > 0) {
        const std::lock_guard lock(mutex);
        if (rule == Rule::kCallersOnly)
            complain("a call of the program", "while the module is in MPI");
    }
}
OwnCall::~OwnCall() {
    --in_mpi;
}

std::size_t calls() {
    return call_count;
}

std::string complaint() {
    const std::lock_guard lock(mutex);
    return first_complaint;
}

}  // namespace watch

using watch::Call;

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
    const Call call("MPI_Isend");
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
    const Call call("MPI_Irecv");
    return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Testall(int count, MPI_Request* requests, int* complete, MPI_Status* statuses) {
    const Call call("MPI_Testall");
    return PMPI_Testall(count, requests, complete, statuses);
}
int MPI_Iallreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
    const Call call("MPI_Iallreduce");
    return PMPI_Iallreduce(send, recv, count, type, op, comm, request);
}
int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
    const Call call("MPI_Ibcast");
    return PMPI_Ibcast(data, count, type, root, comm, request);
}
int MPI_Iallgather(const void* send, int send_count, MPI_Datatype send_type, void* recv,
                   int recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request) {
    const Call call("MPI_Iallgather");
    return PMPI_Iallgather(send, send_count, send_type, recv, recv_count, recv_type, comm, request);
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
    const Call call("MPI_Ibarrier");
    return PMPI_Ibarrier(comm, request);
}
int MPI_Comm_free(MPI_Comm* comm) {
    const Call call("MPI_Comm_free");
    return PMPI_Comm_free(comm);
}
