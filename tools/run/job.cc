#include "job.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace ddprun {
namespace {

// Ranks learn of a death at once and say whose it was. A rank that has neither computed nor printed
// for this long is not about to say anything: a rank of libddp waits up to a second before it looks
// for the cause itself.
constexpr Milliseconds kQuietTime{2000};
// A killed process goes away when the kernel gets to it; one that is stuck in the kernel never
// does.
constexpr Milliseconds kKillTime{10'000};
// Output of processes that keep a rank's pipe open although the rank and its group have gone.
constexpr Milliseconds kDrainTime{2000};
constexpr Milliseconds kTick{20};

}  // namespace

Job::Job(uv_loop_t* loop, Output& output, Guard& guard, Orphans& orphans, Plan plan)
    : loop_(loop),
      output_(output),
      guard_(guard),
      orphans_(orphans),
      plan_(std::move(plan)),
      tick_(loop,
            [this] {
                start_again();
                advance();
            }),
      look_(loop, [this] { advance(); }) {}

void Job::start() {
    if (plan_.survival->is_elastic()) look_.start(kBetweenIdleLooks);
    start_all();
    advance();
}

void Job::start_all() {
    ranks_.reserve(static_cast<std::size_t>(plan_.ranks));
    try {
        for (int i = 0; i < plan_.ranks; ++i) ranks_.push_back(start_rank(i, plan_.restart));
    } catch (const std::runtime_error& error) {
        const std::size_t rank = static_cast<std::size_t>(plan_.first_rank) + ranks_.size();
        fail({1, false, "cannot start rank " + std::to_string(rank) + ": " + error.what(),
              Weight::kLauncher});
        kill();
    }
}

std::shared_ptr<LogFile> Job::open_log(int rank, int restart) {
    if (plan_.log_dir.empty()) return nullptr;
    const std::string suffix = restart == 0 ? "" : ".restart-" + std::to_string(restart);
    return std::make_shared<LogFile>(plan_.log_dir + "/rank-" + std::to_string(rank) + suffix +
                                     ".log");
}

// Throws std::runtime_error.
Job::Rank Job::start_rank(int local_rank, int restart) {
    const int number = plan_.first_rank + local_rank;
    const std::shared_ptr<LogFile> log = open_log(number, restart);
    if (plan_.votes) plan_.votes->reset(local_rank);
    Rank rank;
    rank.process = std::make_unique<Process>(number, LineStream(output_, output_.out, number, log),
                                             LineStream(output_, output_.err, number, log),
                                             [this](Process& ended) { on_end(ended); });
    rank.restart = restart;
    rank.since_ns =
        std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
    rank.process->start(loop_, guard_.pipe(), plan_.program, plan_.environment(local_rank, restart),
                        plan_.open_files,
                        plan_.places.empty()
                            ? std::vector<int>()
                            : plan_.places[static_cast<std::size_t>(local_rank)].processors);
    orphans_.exclude(rank.process->pid());
    return rank;
}

// Starts ranks again of which nothing is left. Not from within a callback of their processes, which
// end here.
void Job::start_again() {
    const auto now = Clock::now();
    for (Rank& rank : ranks_) {
        if (!rank.again || !rank.gone) continue;
        const bool waits = output_.congested() || now - rank.gone_at < kDrainTime;
        if (!rank.process->drained() && waits) continue;
        rank.process->close_output();
        const int number = rank.process->rank();
        plan_.records->begin_again(number, rank.since_ns);
        try {
            rank = start_rank(number - plan_.first_rank, rank.restart + 1);
        } catch (const std::runtime_error& error) {
            rank.again = false;
            failed(rank,
                   {1, false,
                    "cannot start rank " + std::to_string(number) + " again: " + error.what(),
                    Weight::kLauncher},
                   false);
        }
    }
}

void Job::on_end(Process& process) {
    orphans_.include(process.pid());
    judge(rank_of(process));
    advance();
}

void Job::judge(Rank& rank) {
    const Process& process = *rank.process;
    const Ending& ending = *process.ending();
    const std::string name =
        "rank " + std::to_string(process.rank()) + " (pid " + std::to_string(process.pid()) + ")";
    const std::string cannot_run =
        "cannot run '" + plan_.program[0] + "': " + std::strerror(process.exec_error());
    if (process.exec_error() != 0 && rank.restart == plan_.restart) {
        if (!failure_) fail({ending.code(), false, cannot_run, Weight::kLauncher});
        kill();
    } else if (phase_ > Phase::kReporting) {
        return;
    } else if (process.exec_error() != 0) {
        failed(rank,
               {ending.code(), false, cannot_run, Weight::kLauncher, process.rank(), rank.since_ns},
               false);
    } else if (ending.ok()) {
        plan_.survival->succeeded(process.pid());
        if (plan_.survival->is_ending()) look_.start(kBetweenLooksAtStore);
    } else {
        const bool wanted = std::count(passed_on_.begin(), passed_on_.end(), ending.signal) != 0;
        const std::string fault = plan_.records->note(process.rank(), ending, process.last_words());
        if (!fault.empty()) output_.say(fault);
        failed(rank,
               {ending.code(), !wanted, name + " " + ending.text(), weight_of(ending),
                process.rank(), rank.since_ns},
               !wanted);
    }
}

void Job::failed(Rank& rank, Failure failure, bool may_start_again) {
    using After = Survival::After;
    const After after = phase_ == Phase::kRunning
                            ? plan_.survival->failed(may_start_again, running())
                            : After::kEnd;
    failure.next = plan_.survival->next(after);
    if (after == After::kEnd) return gather(std::move(failure));
    if (after == After::kFailAtEnd && !failure_) return fail(std::move(failure));
    explain(failure, false);
    say(failure);
    rank.again = after == After::kStartAgain;
    if (rank.again) tick_.start(kTick);
}

void Job::gather(Failure failure) {
    begin_report();
    if (decided_) {
        if (failure.weight > Weight::kStatus) say(failure);
        return;
    }
    const bool certain = failure.weight == Weight::kKill;
    gathered_.push_back(std::move(failure));
    if (certain) decide();
}

// Takes the failure that explains the others for that of the job, and tells of every other death by
// a signal.
void Job::decide() {
    if (std::exchange(decided_, true) || gathered_.empty()) return;
    const auto cause =
        std::max_element(gathered_.begin(), gathered_.end(),
                         [](const Failure& a, const Failure& b) { return a.weight < b.weight; });
    const bool is_here = !failure_ && cause->weight > elsewhere_;
    if (is_here) fail(*cause);
    for (auto other = gathered_.begin(); other != gathered_.end(); ++other) {
        // A rank that exits may make others abort, and one that aborts others exit.
        const bool may_matter = other->weight > Weight::kStatus ||
                                (other == gathered_.begin() && cause->weight == Weight::kAbort);
        if (may_matter && !(is_here && other == cause)) say(*other);
    }
}

void Job::say(const Failure& failure) {
    output_.line("ddprun on " + plan_.host + ": " + failure.sentence);
}

void Job::explain(Failure& failure, bool all_end) const {
    const std::string why =
        failure.rank < 0 ? "" : plan_.records->explain(failure.rank, failure.since_ns, all_end);
    if (!why.empty()) failure.sentence += ": " + why;
    if (!failure.next.empty()) failure.sentence += "; " + failure.next;
}

void Job::fail(Failure failure) {
    explain(failure, true);
    say(failure);
    failure_ = std::move(failure);
}

void Job::enter(Phase phase, Milliseconds bound) {
    phase_ = phase;
    for (Rank& rank : ranks_) rank.again = false;
    deadline_ = Clock::now() + bound;
    tick_.start(kTick);
}

// All ranks learn of one rank's vote. Several would count in several steps.
int Job::ask_for_vote(std::uint32_t kind) {
    for (std::size_t local = 0; local < ranks_.size(); ++local) {
        const auto number = static_cast<int>(local);
        if (!ranks_[local].process->running() || !plan_.votes->listens(number)) continue;
        plan_.votes->ask(number, kind);
        return plan_.first_rank + number;
    }
    return -1;
}

void Job::pass_on(int signal) {
    passed_on_.push_back(signal);
    for (const Rank& rank : ranks_) rank.process->signal(signal);
}

void Job::stop(int signal) {
    for (const Rank& rank : ranks_) {
        if (!rank.gone) rank.process->signal_group(signal);
    }
    if (phase_ == Phase::kRunning || phase_ == Phase::kReporting)
        enter(Phase::kStopping, plan_.grace);
    advance();
}

void Job::stop_after_report(Weight elsewhere) {
    elsewhere_ = elsewhere;
    begin_report();
    if (elsewhere >= Weight::kKill) decide();
}

void Job::begin_report() {
    if (phase_ != Phase::kRunning) return;
    decide_at_ = Clock::now() + plan_.gather_time;
    enter(Phase::kReporting, plan_.report_time);
}

bool Job::report_is_over() {
    const auto now = Clock::now();
    // Ranks that wait until somebody reads what they have to say are not quiet.
    if (output_.congested()) congested_ = now;
    bool quiet = now - congested_ >= kQuietTime;
    for (const Rank& rank : ranks_) {
        if (rank.process->running() && now - rank.process->last_active() < kQuietTime)
            quiet = false;
    }
    return quiet || now >= deadline_;
}

void Job::kill() {
    decide();
    for (const Rank& rank : ranks_) {
        if (!rank.gone) rank.process->signal_group(SIGKILL);
    }
    if (phase_ < Phase::kKilling) enter(Phase::kKilling, kKillTime);
}

void Job::resume() {
    for (const Rank& rank : ranks_) rank.process->resume();
}

std::vector<pid_t> Job::running() const {
    std::vector<pid_t> pids;
    for (const Rank& rank : ranks_)
        if (rank.process->running()) pids.push_back(rank.process->pid());
    return pids;
}

bool Job::all_gone() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.gone && !rank.again; });
}

void Job::advance() {
    if (phase_ == Phase::kEnded) return;
    for (Rank& rank : ranks_) end_leftovers(rank);
    const bool gathering = phase_ == Phase::kReporting && !decided_ && Clock::now() < decide_at_;
    // Another node may know better even when all ranks of this one have gone.
    if (gathering && plan_.spans_nodes && Clock::now() < deadline_) return;
    if (phase_ != Phase::kDraining && all_gone()) enter(Phase::kDraining, kDrainTime);
    if (phase_ > Phase::kReporting || (phase_ == Phase::kReporting && !gathering)) decide();
    if (phase_ == Phase::kRunning && plan_.survival->is_over(running())) {
        output_.say("those that trained have finished; whoever still waits for a place is ended");
        stop(SIGTERM);
    }
    const bool late = phase_ != Phase::kRunning && Clock::now() >= deadline_;
    if (phase_ == Phase::kDraining) {
        finish_draining();
    } else if (phase_ == Phase::kReporting && report_is_over()) {
        stop(SIGTERM);
    } else if (phase_ == Phase::kStopping && late) {
        kill();
    } else if (phase_ == Phase::kKilling && late) {
        for (Rank& rank : ranks_) {
            if (!rank.gone) abandon(rank);
        }
    }
}

// A rank that has ended takes the processes of its group with it: first with SIGTERM, then with
// SIGKILL.
void Job::end_leftovers(Rank& rank) {
    if (rank.gone || rank.process->running()) return;
    if (rank.process->group_gone()) {
        rank.gone = true;
        rank.gone_at = Clock::now();
        guard_.remove(rank.process->pid());
        return;
    }
    const auto now = Clock::now();
    if (!rank.kill_at) {
        rank.process->signal_group(phase_ == Phase::kKilling ? SIGKILL : SIGTERM);
        rank.kill_at = now + plan_.grace;
        tick_.start(kTick);
    } else if (now >= *rank.kill_at + kKillTime) {
        abandon(rank);
    } else if (now >= *rank.kill_at) {
        rank.process->signal_group(SIGKILL);
    }
}

void Job::finish_draining() {
    const bool no_orphans = orphans_.end();
    const bool drained = std::all_of(ranks_.begin(), ranks_.end(),
                                     [](const Rank& rank) { return rank.process->drained(); });
    // A slow reader of ddprun's own output is waited for; it is not the ranks that keep the pipes
    // open then.
    if (!drained && output_.congested()) deadline_ = Clock::now() + kDrainTime;
    if (!(no_orphans && drained) && Clock::now() < deadline_) return;
    for (const Rank& rank : ranks_) rank.process->close_output();
    tick_.stop();
    look_.stop();
    phase_ = Phase::kEnded;
}

// SIGKILL did not help within kKillTime.
void Job::abandon(Rank& rank) {
    rank.gone = true;
    rank.gone_at = Clock::now();
    output_.say("rank " + std::to_string(rank.process->rank()) + " (pid " +
                std::to_string(rank.process->pid()) +
                ") or a process of its group does not go away after SIGKILL; leaving it behind");
}

}  // namespace ddprun
