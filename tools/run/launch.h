// One call of ddprun: the store, the signals, the generations of the job, and the exit status.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "exporter.h"
#include "job.h"
#include "nodes.h"
#include "options.h"
#include "votes.h"

namespace ddprun {

// A loop that is closed after the handles on it.
class Loop {
public:
    Loop();
    ~Loop();
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    uv_loop_t* get() { return &loop_; }
    void run_once() { uv_run(&loop_, UV_RUN_ONCE); }
    // Does what is to be done now, and waits for nothing.
    void run_ready() { uv_run(&loop_, UV_RUN_NOWAIT); }

private:
    uv_loop_t loop_;
};

class Launch {
public:
    Launch(Options options, Secret secret);

    // Runs the job to its end and returns ddprun's exit status. Throws std::runtime_error if it
    // cannot begin.
    int run();

    // Writes the variables and the command of each rank of this node to standard output, and starts
    // nothing.
    int show();

private:
    bool spans_nodes() const { return options_.nodes > 1; }
    bool is_elastic() const { return options_.min_ranks.has_value(); }
    bool joins() const { return !options_.store.empty(); }
    void watch_signals();
    void on_signal(int signal);
    // Whether the signal has become a vote of a rank.
    bool is_vote(int signal);
    // Tells the other ddpruns of the job.
    void note_stop(int signal);
    // 128 + the signal if --stop-on has asked for the end of this job, and says so; else 0.
    int status_of_stop();
    void say_where_ranks_are();
    void write_trace();
    void write_report();
    // Where this node's server listens; port 0: a free one.
    Endpoint address_to_bind() const;
    // Makes no store if a signal interrupts ddprun meanwhile.
    void serve();
    void open_shared_store();
    void join(const std::string& uri, const std::string& whose);
    void open_elastic_store();
    void start_job();
    // Says so if the ranks cannot be placed as the user wants.
    std::vector<Place> find_places();
    JobFacts job_facts() const;
    int threads_of(int local_rank) const;
    RankFacts facts_of(int local_rank, int restart) const;
    Job::Plan plan();
    void follow_with_metrics();
    int run_here();
    // Waits in an elastic job until nobody trains any more who needs the store.
    void await_others();
    int run_with_nodes();
    // Waits until there is a generation to take part in.
    void await_orders(const Nodes& nodes);
    void follow_orders(const Nodes& nodes);
    // Which nodes node 0 waits for, one time.
    void say_who_is_absent(const Nodes& nodes);
    void say_if_others_cannot_reach(const Endpoint& address);
    // Nothing more is to come for this node.
    bool is_over(const Nodes& nodes) const;
    void take_leave(Nodes& nodes);
    // Whether node 0 gets the records of all nodes: there is something to explain or to draw.
    bool gathers_records(const Nodes& nodes) const;
    // The most that this node sends of its records.
    std::uint64_t bytes_of_records() const;
    // wanted: by this node's options; otherwise it says that there are none.
    void send_records(bool wanted);
    // senders: the nodes that were there when the job ended. A signal that came after
    // interrupted_before ends the wait.
    void await_records(const Nodes& nodes, const std::vector<int>& senders, int interrupted_before);
    void take_records(const Nodes& nodes);
    Report report() const;
    // The status with which this node's part of the job ended, apart from what other nodes did.
    int own_status() const;
    // Why, in a sentence that names the host; empty if it went well.
    std::string own_reason() const;
    void flush();

    const Options options_;
    const Secret secret_;
    const std::string host_;
    const rlim_t open_files_;
    Loop loop_;
    Output output_;
    Orphans orphans_;
    std::optional<Store> store_;
    std::string store_uri_;  // as the ranks are told
    std::vector<Place> places_;
    std::optional<Guard> guard_;
    std::optional<Records> records_;
    std::optional<Exporter> exporter_;  // --metrics
    std::optional<Roll> roll_;          // of an elastic job
    std::optional<Survival> survival_;
    std::unique_ptr<VotePage> votes_;  // null: no signal is a vote
    bool stop_asked_ = false;
    std::unique_ptr<Job> job_;
    std::list<SignalWatch> signals_;
    int generation_ = 0;
    int interrupted_ = 0;     // the signal by which somebody asked ddprun to end
    bool impatient_ = false;  // by a second interrupt
    bool told_to_end_ = false;
    bool told_who_is_absent_ = false;
};

}  // namespace ddprun
