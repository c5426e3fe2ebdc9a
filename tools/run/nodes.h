// How the launchers of several nodes act as one. Each node's ddprun writes a report into the store
// that node 0 hosts, and node 0 writes orders that all follow:
//
//     run g    every node runs generation g
//     stop g   a rank of generation g failed somewhere: every node ends its ranks
//     end      the job is over; every node exits with the code
//
// Reports and orders are exchanged four times a second by a thread of libuv's pool, so that a slow
// network never holds up the loop. They carry a counter that shows that their writer is alive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "failure.h"
#include "loop.h"
#include "rendezvous.h"

namespace ddprun {

struct Report {
    enum class State { kRunning, kFailed, kStopped, kSucceeded, kLeft };

    int generation = 0;
    State state = State::
        kRunning;  // kFailed: a rank failed, others still end. kStopped, kSucceeded: none runs any
                   // more. kLeft: nor does ddprun there, or not for long.
    // why it failed; 0: it did not, or only because it was told to stop
    int code = 0;
    bool may_restart = true;
    std::string text;
    Weight weight = Weight::kNone;  // of the failure

    bool operator==(const Report&) const = default;
};

struct Order {
    enum class Kind { kRun, kStop, kEnd };

    int generation = 0;
    Kind kind = Kind::kRun;
    int code = 0;
    bool may_restart = true;
    std::string text;
    Weight weight = Weight::kNone;
};

// The text of a report in the store. beat: a number that differs in each message. Empty if the text
// is malformed, as from another version of ddprun.
std::string encode_report(const Report& report, std::int64_t beat);
std::optional<Report> decode_report(const std::string& encoded);
std::string encode_order(const Order& order, std::int64_t beat);
std::optional<Order> decode_order(const std::string& encoded);

// The next order of node 0, given the latest report of each node.
Order next_order(const Order& current, const std::vector<std::optional<Report>>& reports,
                 int max_restarts);

class Nodes {
public:
    struct Shape {
        int node_rank = 0;
        int nodes = 1;
        int local_ranks = 1;
        int max_restarts = 0;
        Milliseconds lost_after{20'000};     // without a sign of life a node counts as lost
        Milliseconds join_time = kJoinTime;  // how long node 0 waits for one that has not come
    };

    // Says hello to the others. Throws std::runtime_error if this node's rank is taken or it
    // differs from node 0 in the number of nodes or of ranks.
    Nodes(uv_loop_t* loop, Store& store, Shape shape);
    // Runs the loop until no exchange is under way.
    ~Nodes();
    Nodes(const Nodes&) = delete;
    Nodes& operator=(const Nodes&) = delete;

    void report(Report report);
    // Node 0's orders are known: at the other nodes, some time after the beginning.
    bool has_order() const { return has_order_; }
    const Order& order() const { return order_; }
    // Why the job cannot go on, if the store has not answered for too long. Empty otherwise.
    const std::string& lost() const { return lost_; }
    // The others have learned what they need: node 0 that this node leaves, the other nodes how the
    // job ended. wait_for_absent: also nodes that have not come yet.
    bool may_go(bool wait_for_absent) const;
    // At node 0, of another one: it has said hello; it has left.
    bool has_come(int node) const { return peers_[static_cast<std::size_t>(node)].came; }
    bool has_left(int node) const { return peers_[static_cast<std::size_t>(node)].has_left(); }
    // At node 0: those that have not come, some seconds after the start. The wait for each ends
    // with the job.
    std::vector<int> absent() const;
    // At node 0: the others that have not left, and that answered until the order to end, in words
    // that it can read.
    std::vector<int> still_here() const;

private:
    struct Peer {
        bool has_left() const { return report && report->state == Report::State::kLeft; }

        bool came = false;        // it has said hello
        bool unreadable = false;  // its latest report is malformed
        std::optional<Report> report;
        std::string last_text;  // with its counter
        Clock::time_point last_change = Clock::now();
    };
    // The content of one exchange, to the pool's thread and back.
    struct Exchange {
        uv_work_t work{};
        std::string write;
        std::int64_t version = 0;
        std::vector<std::optional<std::string>> read;
        std::vector<bool> came;  // at node 0: which nodes have said hello
        std::string refused;     // at node 0: what a node says that takes no part
        std::string error;
        bool lost = false;  // the connection to the store has ended
    };

    bool leads() const { return shape_.node_rank == 0; }
    void say_hello();
    [[noreturn]] void refuse(const std::string& why);
    void begin_exchange();
    void run_exchange(Exchange& exchange);
    void end_exchange(const Exchange& exchange);
    void take_reports(const Exchange& exchange);
    void decide();
    void give_up_on(int node, const std::string& what);
    void give_up(const std::string& why);

    uv_loop_t* const loop_;
    Store& store_;
    const Shape shape_;
    Report report_;
    Order order_;
    bool has_order_;
    std::string lost_;
    std::vector<Peer> peers_;
    std::string refused_;
    // when node 0 last chose an order: after kEnd it chooses none
    Clock::time_point decided_ = Clock::now();
    std::int64_t beat_ = 0;
    std::int64_t version_ = 0;           // counts the changes of report_
    std::int64_t written_version_ = -1;  // the latest that is in the store
    bool busy_ = false;
    Clock::time_point last_answer_ = Clock::now();
    Exchange exchange_;
    Timer timer_;
};

}  // namespace ddprun
