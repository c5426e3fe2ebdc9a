#include "launch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "child.h"
#include "util/host.h"
#include "util/processors.h"
#include "util/text.h"
#include "write_text.h"

namespace ddprun {
namespace {

// Ranks react within milliseconds to a death, and only a busy machine takes longer to show it.
constexpr Milliseconds kGatherTime{500};
// Failures that another node has seen come with the next exchanges, four times a second on either
// side.
constexpr Milliseconds kGatherTimeOfNodes{1000};
// After a second interrupt, output that nobody reads is given up.
constexpr Milliseconds kLastPatience{200};
// How long a node that leaves waits for the others to see it.
constexpr Milliseconds kLeaveTime{5000};
// How much longer node 0 waits for each MiB of records that is on its way: the time that libddp's
// store gives it.
constexpr Milliseconds kTimeOfMiB{1000};
// The most that the nodes of a job together send node 0 of their records: the store holds more, but
// for the job.
constexpr std::uint64_t kBytesOfRecords = std::uint64_t{256} << 20;
constexpr std::uint64_t kMostBytesOfRecords = std::uint64_t{48} << 20;

// The signal by which --stop-on has asked the ranks of this job to stop.
constexpr const char* kStopped = "ddp/run/stopped";

std::string records_key(int node) {
    return "ddp/run/records/" + std::to_string(node);
}

bool is_ignored(int signal) {
    struct sigaction action {};
    return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// The status stands. A signal that comes while handles are closed, when nobody watches any more, is
// not to replace it.
void hold_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGQUIT})
        sigaddset(&signals, number);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

// As a shell takes it.
std::string quoted(const std::string& word) {
    const auto plain = [](unsigned char c) {
        return std::isalnum(c) || std::strchr("_-+=.,:/@%", c);
    };
    if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
    std::string text(1, '\'');
    for (const char c : word) {
        if (c == '\'') text.append("'\\'");
        text.push_back(c);
    }
    text.push_back('\'');
    return text;
}

// "300 s", "0.500 s".
std::string seconds_text(Milliseconds time) {
    std::string text = std::to_string(time.count() / 1000);
    if (const auto rest = time.count() % 1000; rest != 0)
        text += "." + std::to_string(1000 + rest).substr(1);
    return text + " s";
}

// The ranks of several ddpruns are told apart by their hosts, where lines of all are read together.
OutputStyle style_for(const Options& options, const std::string& host) {
    OutputStyle style = options.style;
    const bool elastic = options.min_ranks.has_value();
    if (options.nodes > 1 || (elastic && (options.rendezvous || !options.store.empty())))
        style.host = host;
    return style;
}

// A server that listens on every address is reached on this host by the loopback address.
std::string reachable(const std::string& bound) {
    if (bound == "0.0.0.0") return "127.0.0.1";
    return bound == "::" ? "::1" : bound;
}

}  // namespace

Loop::Loop() {
    const int status = uv_loop_init(&loop_);
    if (status != 0)
        throw std::runtime_error(std::string("cannot make an event loop: ") + uv_strerror(status));
}

Loop::~Loop() {
    // Lets the handles' memory go, which their owners have closed.
    while (uv_loop_close(&loop_) == UV_EBUSY) run_once();
}

Launch::Launch(Options options, Secret secret)
    : options_(std::move(options)),
      secret_(std::move(secret)),
      host_(libddp::host_name()),
      open_files_(raise_open_files()),
      output_(loop_.get(), style_for(options_, host_)) {
    const auto resume = [this] {
        if (job_) job_->resume();
    };
    output_.out.on_relief = resume;
    output_.err.on_relief = resume;
}

int Launch::run() {
    if (!options_.log_dir.empty()) std::filesystem::create_directories(options_.log_dir);
    places_ = find_places();
    if (options_.metrics) {
        exporter_.emplace(*options_.metrics);
        output_.say("metrics: " + exporter_->url());
    }
    // Waiting for node 0 comes before the signals are watched: until there are ranks, ddprun simply
    // ends by them.
    if (spans_nodes()) open_shared_store();
    if (is_elastic()) open_elastic_store();
    guard_.emplace(loop_.get());
    orphans_.exclude(guard_->pid());
    records_.emplace(options_.record_dir, job_facts());
    if (!records_->why_none().empty()) output_.say(records_->why_none());
    if (!records_->temporary().empty()) guard_->add_folder(records_->temporary());
    if (options_.checkpoint_on != 0 || options_.stop_on != 0)
        votes_ = std::make_unique<VotePage>(options_.local_ranks);
    watch_signals();
    const int status = spans_nodes() ? run_with_nodes() : run_here();
    write_trace();
    flush();
    if (!options_.report.empty() && !impatient_) write_report();
    hold_signals();
    return status == 0 && output_.lost() ? kLauncherError : status;
}

void Launch::write_trace() {
    if (options_.trace_file.empty()) return;
    try {
        records_->write_trace(options_.trace_file, options_.trace_steps);
    } catch (const std::system_error& error) {
        output_.say_lost(std::string("--trace: ") + error.what());
    } catch (const std::exception& error) {  // there is nothing to show
        output_.say(std::string("--trace: ") + error.what());
    }
}

int Launch::show() {
    places_ = find_places();
    const Endpoint address = address_to_bind();
    const Endpoint reached =
        options_.rendezvous.value_or(Endpoint{reachable(address.host), address.port});
    store_uri_ = options_.store.empty() ? reached.uri() : options_.store;
    libddp::TextOut text;
    for (int local = 0; local < options_.local_ranks; ++local) {
        RankFacts facts = facts_of(local, 0);
        facts.secret.text = "...";
        text << '[' << facts.rank << ']';
        for (const auto& [name, value] : launcher_variables(facts, options_.environment))
            text << ' ' << name << '=' << quoted(value);
        for (const std::string& word : options_.program) text << ' ' << quoted(word);
        text << '\n';
    }
    flush();
    libddp::write_output(text.str());
    return 0;
}

void Launch::watch_signals() {
    // Their errors are enough: of an output that nobody reads, of a log file that may not grow.
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    const auto seen = [this](int number) { on_signal(number); };
    for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGQUIT})
        signals_.emplace_back(loop_.get(), number, seen);
    // Under nohup a hang-up is to change nothing.
    if (!is_ignored(SIGHUP)) signals_.emplace_back(loop_.get(), SIGHUP, seen);
    signals_.emplace_back(loop_.get(), SIGCHLD, [this](int) { orphans_.reap(); });
}

// As a Java virtual machine does with its threads.
void Launch::say_where_ranks_are() {
    libddp::TextIn lines(records_->describe());
    for (std::string line; std::getline(lines, line);)
        output_.line("ddprun on " + host_ + ": " + line);
}

void Launch::write_report() {
    try {
        records_->write_report(options_.report);
    } catch (const std::exception& error) {
        output_.say_lost("--report: " + std::string(error.what()));
        flush();
    }
}

bool Launch::is_vote(int number) {
    if (!votes_ || !job_) return false;
    const bool stops = number == options_.stop_on;
    if ((!stops && number != options_.checkpoint_on) || (stops && stop_asked_)) return false;
    const int rank =
        job_->ask_for_vote(stops ? libddp::VoteSlot::kStop : libddp::VoteSlot::kCheckpoint);
    const std::string name = signal_name(number);
    output_.line("ddprun on " + host_ + ": received " + name +
                 (rank < 0 ? ", and no rank has a context that counts votes (DDP_CONTEXT_VOTES); "
                             "the signal goes to the ranks"
                           : ": rank " + std::to_string(rank) + " votes for all ranks to " +
                                 (stops ? "stop after the same step; another " + name + " ends them"
                                        : "write a checkpoint after the same step")));
    if (stops && rank >= 0) note_stop(number);
    return rank >= 0;
}

void Launch::note_stop(int number) {
    stop_asked_ = true;
    try {
        store_->set(kStopped, std::to_string(number));
    } catch (const std::runtime_error&) {  // then this ddprun alone says it
    }
}

// Ranks that have stopped end with 0, as those do that have finished their work.
int Launch::status_of_stop() {
    if (own_status() != 0) return 0;
    int number = stop_asked_ ? options_.stop_on : 0;
    if (number == 0 && (spans_nodes() || is_elastic())) try {
            number = std::atoi(store_->get(kStopped).value_or("0").c_str());
        } catch (const std::runtime_error&) {  // the store has gone
        }
    if (number == 0) return 0;
    const int status = 128 + number;
    output_.say("the job has stopped after " + signal_name(number) + ", so the status is " +
                std::to_string(status));
    return status;
}

void Launch::on_signal(int number) {
    if (number == SIGQUIT) return say_where_ranks_are();
    if (is_vote(number)) return;
    const bool ends = number == SIGINT || number == SIGTERM;
    const bool again = number == SIGINT && (interrupted_ != 0 || (job_ && job_->failure()));
    if (ends && interrupted_ == 0) interrupted_ = number;
    if (again) impatient_ = true;
    if (ends) output_.limit_patience(again ? kLastPatience : options_.grace + kLastPatience);
    if (!job_) return;
    if (!ends) {
        job_->pass_on(number);
    } else if (again) {
        job_->kill();
    } else {
        job_->stop(number);
    }
}

Endpoint Launch::address_to_bind() const {
    Endpoint address = options_.rendezvous.value_or(Endpoint{"127.0.0.1", 0});
    if (!options_.bind.empty()) address.host = options_.bind;
    return address;
}

void Launch::serve() {
    const Endpoint address = address_to_bind();
    // The old server goes first: it may hold the port.
    store_.reset();
    // While libddp waits for the name of this host, this thread is not in the loop: the loop runs
    // when libddp asks.
    Timer keeps_loop_alive(loop_.get(), [] {});
    keeps_loop_alive.start(kBetweenLooksAtStore);
    const auto interrupted = [this] {
        loop_.run_ready();
        return interrupted_ != 0;
    };
    try {
        store_ = Store::serve(address, secret_.text, options_.join_time, interrupted);
    } catch (const std::runtime_error& error) {
        if (interrupted_ != 0) return;
        throw std::runtime_error("cannot host the store at " + address.uri() + ": " + error.what());
    }
    store_uri_ =
        options_.rendezvous.value_or(Endpoint{reachable(address.host), store_->port()}).uri();
}

void Launch::join(const std::string& uri, const std::string& whose) {
    store_uri_ = uri;
    try {
        store_ = Store::connect(uri, secret_.text, options_.join_time, [&](const std::string& why) {
            output_.say("this node waits for " + whose + ", up to " +
                        seconds_text(options_.join_time) + " (--timeout): " + why);
            flush();
        });
    } catch (const std::runtime_error& error) {
        throw std::runtime_error("cannot reach " + whose + " at " + uri + ": " + error.what());
    }
}

void Launch::open_shared_store() {
    if (options_.node_rank != 0) return join(options_.rendezvous->uri(), "the store of node 0");
    serve();
    say_if_others_cannot_reach(address_to_bind());
}

void Launch::say_if_others_cannot_reach(const Endpoint& address) {
    const std::string loopback = hidden_loopback(address.host);
    if (loopback.empty()) return;
    output_.say("'" + address.host + "' is " + loopback +
                " on this node, where no other node can reach the store: correct /etc/hosts, or "
                "add --bind 0.0.0.0 here");
}

void Launch::open_elastic_store() {
    joins() ? join(options_.store, "the job's store, of --store,") : serve();
    roll_.emplace(*store_, host_);
    if (joins()) roll_->take_part(true);
}

std::vector<Place> Launch::find_places() {
    if (options_.placing == Placing::kNone) return {};
    std::string why_not;
    std::vector<Place> places =
        place_ranks(find_machine(), options_.placing, options_.local_ranks, why_not);
    if (places.empty()) output_.say("ranks are not placed: " + why_not);
    return places;
}

JobFacts Launch::job_facts() const {
    JobFacts facts = own_facts(options_.program);
    facts.ranks = options_.local_ranks;
    facts.nodes = options_.nodes;
    facts.node_rank = options_.node_rank;
    const char* events = std::getenv(kRecordEvents);
    for (const auto& [name, value] : options_.environment)
        if (name == kRecordEvents) events = value.c_str();
    if (events && *events) facts.events = std::strtoull(events, nullptr, 10);
    return facts;
}

int Launch::threads_of(int local_rank) const {
    const int share = std::max(1, libddp::usable_processors() / options_.local_ranks);
    return places_.empty()
               ? share
               : std::min(share, places_[static_cast<std::size_t>(local_rank)].threads());
}

RankFacts Launch::facts_of(int local_rank, int restart) const {
    return {options_.node_rank * options_.local_ranks + local_rank,
            options_.nodes * options_.local_ranks,
            local_rank,
            options_.local_ranks,
            restart,
            threads_of(local_rank),
            store_uri_,
            secret_,
            records_ ? records_->folder() : "",
            votes_ ? votes_->place(local_rank) : ""};
}

Job::Plan Launch::plan() {
    Job::Plan plan;
    plan.program = options_.program;
    plan.places = places_;
    plan.first_rank = options_.node_rank * options_.local_ranks;
    plan.report_time = options_.report_time;
    plan.gather_time = spans_nodes() ? kGatherTimeOfNodes : kGatherTime;
    plan.spans_nodes = spans_nodes();
    plan.grace = options_.grace;
    plan.log_dir = options_.log_dir;
    plan.restart = generation_;
    plan.open_files = open_files_;
    plan.host = host_;
    plan.records = &*records_;
    plan.survival = &*survival_;
    plan.votes = votes_.get();
    plan.ranks = options_.local_ranks;
    plan.environment = [this](int local_rank, int restart) {
        return rank_environment(facts_of(local_rank, restart), options_.environment);
    };
    return plan;
}

void Launch::start_job() {
    told_to_end_ = false;
    records_->begin_generation(generation_);
    if (!records_->why_unseen().empty()) output_.say(records_->why_unseen());
    if (is_elastic())
        survival_.emplace(
            Survival::Rules{options_.local_ranks, *options_.min_ranks, options_.max_restarts},
            *roll_);
    else
        survival_.emplace(options_.local_ranks);
    follow_with_metrics();
    if (generation_ > 0) {
        output_.say("restarting the job (restart " + std::to_string(generation_) + " of at most " +
                    std::to_string(options_.max_restarts) + ")");
    }
    job_ = std::make_unique<Job>(loop_.get(), output_, *guard_, orphans_, plan());
    job_->start();
}

void Launch::follow_with_metrics() {
    if (exporter_)
        exporter_->follow({options_.local_ranks, generation_ + survival_->starts()},
                          records_->folder());
}

int Launch::own_status() const {
    if (job_ && job_->failure()) return job_->failure()->code;
    return interrupted_ != 0 ? 128 + interrupted_ : 0;
}

int Launch::run_here() {
    for (;; ++generation_) {
        // Each generation gets a fresh store, so that nothing of the one before can be met there.
        if (!is_elastic()) serve();
        if (interrupted_ != 0) break;
        start_job();
        while (!job_->ended()) {
            const int starts = survival_->starts();
            loop_.run_once();
            if (survival_->starts() != starts) follow_with_metrics();
        }
        const bool may_restart =
            job_->failure() && job_->failure()->may_restart && interrupted_ == 0 && !stop_asked_;
        if (is_elastic() || !may_restart || generation_ == options_.max_restarts) break;
    }
    const int stopped = status_of_stop();
    if (joins()) roll_->take_part(false);
    if (is_elastic() && !joins() && own_status() == 0) await_others();
    return own_status() != 0 ? own_status() : stopped;
}

void Launch::await_others() {
    const auto goes_on = [this] { return !roll_->all_gone(roll_->finishers()); };
    if (goes_on())
        output_.say(
            "the ranks of this ddprun have ended; others still train, and it hosts their store "
            "until they end");
    Timer look(loop_.get(), [] {});
    look.start(kBetweenLooksAtStore);
    while (interrupted_ == 0 && goes_on()) loop_.run_once();
    // Spares there have learned that the job is over, unless their ddprun was killed.
    const auto give_up = Clock::now() + kLeaveTime;
    while (interrupted_ == 0 && roll_->others_take_part() && Clock::now() < give_up)
        loop_.run_once();
}

std::string Launch::own_reason() const {
    if (job_ && job_->failure()) return host_ + ": " + job_->failure()->sentence;
    return interrupted_ != 0 ? host_ + ": ddprun received " + signal_name(interrupted_) : "";
}

Report Launch::report() const {
    Report report;
    report.generation = generation_;
    report.code = own_status();
    report.text = own_reason();
    if (report.code != 0)
        report.weight = job_ && job_->failure() ? job_->failure()->weight : Weight::kLauncher;
    report.may_restart = interrupted_ == 0 && !stop_asked_ &&
                         !(job_ && job_->failure() && !job_->failure()->may_restart);
    if (job_ && !job_->ended()) {
        report.state = report.code == 0 ? Report::State::kRunning : Report::State::kFailed;
    } else {
        report.state =
            report.code == 0 && !told_to_end_ ? Report::State::kSucceeded : Report::State::kStopped;
    }
    return report;
}

void Launch::await_orders(const Nodes& nodes) {
    const auto waits = [&] {
        return !nodes.has_order() || nodes.order().kind == Order::Kind::kStop;
    };
    while (waits() && nodes.lost().empty() && interrupted_ == 0) loop_.run_once();
    generation_ = nodes.order().generation;
}

void Launch::follow_orders(const Nodes& nodes) {
    const Order& order = nodes.order();
    const bool stop =
        order.kind != Order::Kind::kRun && order.generation == generation_ && order.code != 0;
    if (told_to_end_ || !(stop || !nodes.lost().empty())) return;
    told_to_end_ = true;
    const std::string why = nodes.lost().empty() ? order.text : nodes.lost();
    if (why != own_reason()) output_.say("the job ends: " + why);
    if (job_) job_->stop_after_report(nodes.lost().empty() ? order.weight : Weight::kLauncher);
}

void Launch::say_who_is_absent(const Nodes& nodes) {
    if (told_who_is_absent_) return;
    const std::vector<int> absent = nodes.absent();
    if (absent.empty()) return;
    told_who_is_absent_ = true;
    constexpr std::size_t kNamed = 8;
    std::string names;
    for (std::size_t i = 0; i < std::min(absent.size(), kNamed); ++i)
        names += (i == 0 ? "" : ", ") + std::to_string(absent[i]);
    if (absent.size() > kNamed) names += " and " + std::to_string(absent.size() - kNamed) + " more";
    output_.say("of " + std::to_string(options_.nodes) + " nodes these have not come yet: " +
                names + ". Node 0 waits up to " + seconds_text(options_.join_time) +
                " (--timeout). If ddprun runs there, see what it says; otherwise start it with "
                "--node-rank " +
                std::to_string(absent.front()) + " --rdzv " +
                options_.rendezvous->uri().substr(std::strlen("tcp://")));
}

bool Launch::is_over(const Nodes& nodes) const {
    const bool told = nodes.order().kind == Order::Kind::kEnd || !nodes.lost().empty();
    if (!job_) return told || interrupted_ != 0;
    return job_->ended() && (told || impatient_);
}

bool Launch::gathers_records(const Nodes& nodes) const {
    return job_ &&
           (nodes.order().code != 0 || !options_.trace_file.empty() || !options_.report.empty());
}

std::uint64_t Launch::bytes_of_records() const {
    return std::min(kMostBytesOfRecords,
                    kBytesOfRecords / static_cast<std::uint64_t>(options_.nodes));
}

// The failure is told anyway: an error of the store adds nothing to it.
void Launch::send_records(bool wanted) {
    try {
        store_->set(records_key(options_.node_rank),
                    wanted ? records_->pack(bytes_of_records()) : "");
    } catch (const std::runtime_error&) {
    }
}

// A node whose records are on their way gives no sign of life.
void Launch::await_records(const Nodes& nodes, const std::vector<int>& senders,
                           int interrupted_before) {
    const std::uint64_t mib = (bytes_of_records() * senders.size()) >> 20;
    const auto give_up = Clock::now() + kTimeOfMiB * static_cast<Milliseconds::rep>(mib);
    const auto sends = [&](int node) { return !nodes.has_left(node); };
    while (std::any_of(senders.begin(), senders.end(), sends) && nodes.lost().empty() &&
           interrupted_ == interrupted_before && !impatient_ && Clock::now() < give_up)
        loop_.run_once();
}

void Launch::take_records(const Nodes& nodes) {
    for (int node = 1; node < options_.nodes; ++node) {
        try {
            if (const auto packed = store_->get(records_key(node)))
                records_->unpack(*packed);
            else if (nodes.has_come(node))
                output_.say("the records of node " + std::to_string(node) + " have not come");
        } catch (const std::runtime_error& error) {
            output_.say("the records of node " + std::to_string(node) + ": " + error.what());
        }
    }
    const std::string why = nodes.order().code == 0 ? "" : records_->explain(-1, 0, false);
    if (!why.empty() && nodes.order().text.find(why) == std::string::npos)
        output_.say("the records of all nodes: " + why);
}

void Launch::take_leave(Nodes& nodes) {
    const bool gathers = gathers_records(nodes) && nodes.lost().empty();
    if (options_.node_rank != 0 && nodes.lost().empty()) send_records(gathers);
    Report last = report();
    last.state = Report::State::kLeft;
    nodes.report(last);
    const std::vector<int> senders =
        options_.node_rank == 0 ? nodes.still_here() : std::vector<int>();
    const auto give_up = Clock::now() + kLeaveTime;
    const int interrupted_before = interrupted_;
    while (!nodes.may_go(interrupted_before == 0) && !impatient_ && Clock::now() < give_up)
        loop_.run_once();
    if (gathers && options_.node_rank == 0) {
        await_records(nodes, senders, interrupted_before);
        take_records(nodes);
    }
}

int Launch::run_with_nodes() {
    Nodes nodes(loop_.get(), *store_,
                {options_.node_rank, options_.nodes, options_.local_ranks, options_.max_restarts,
                 options_.node_timeout, options_.join_time});
    await_orders(nodes);
    if (!is_over(nodes)) start_job();
    for (; !is_over(nodes); loop_.run_once()) {
        nodes.report(report());
        follow_orders(nodes);
        say_who_is_absent(nodes);
        if (job_->ended() && nodes.order().generation > generation_) {
            generation_ = nodes.order().generation;
            start_job();
        }
    }
    follow_orders(nodes);
    const bool ended_well = nodes.order().kind == Order::Kind::kEnd && nodes.order().code == 0;
    const int stopped = ended_well ? status_of_stop() : 0;
    take_leave(nodes);
    if (stopped != 0) return stopped;
    if (nodes.order().kind == Order::Kind::kEnd) return nodes.order().code;
    return own_status() != 0 ? own_status() : 1;
}

void Launch::flush() {
    while (!output_.empty()) loop_.run_once();
}

}  // namespace ddprun
