#include "job.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace ddprun {
namespace {

// Ranks learn of a death at once and say whose it was. What has neither computed nor printed for this long is not about to
// say anything: a rank of libddp waits up to a second before it looks for the cause itself.
constexpr Milliseconds kQuietTime{2000};
// A killed process goes away when the kernel gets to it; one that is stuck in the kernel never does.
constexpr Milliseconds kKillTime{10'000};
// Output of processes that keep a rank's pipe open although the rank and its group have gone.
constexpr Milliseconds kDrainTime{2000};
constexpr Milliseconds kTick{20};

}  // namespace

Job::Job(uv_loop_t* loop, Output& output, Guard& guard, Orphans& orphans, Plan plan)
    : loop_(loop), output_(output), guard_(guard), orphans_(orphans), plan_(std::move(plan)), tick_(loop, [this] {
          advance();
      }) {}

void Job::start() {
    ranks_.reserve(plan_.environments.size());
    for (std::size_t i = 0; i < plan_.environments.size() && phase_ == Phase::kRunning; ++i) add_rank(i);
    advance();
}

std::shared_ptr<LogFile> Job::open_log(int rank) {
    if (plan_.log_dir.empty()) return nullptr;
    return std::make_shared<LogFile>(plan_.log_dir + "/rank-" + std::to_string(rank) + plan_.log_suffix + ".log");
}

void Job::add_rank(std::size_t local_rank) {
    const int rank = plan_.first_rank + static_cast<int>(local_rank);
    try {
        const std::shared_ptr<LogFile> log = open_log(rank);
        auto process = std::make_unique<Process>(rank, LineStream(output_, output_.out, rank, log),
                                                 LineStream(output_, output_.err, rank, log),
                                                 [this](Process& ended) { on_end(ended); });
        process->start(loop_, guard_.pipe(), plan_.program, plan_.environments[local_rank], plan_.open_files,
                       plan_.places.empty() ? std::vector<int>() : plan_.places[local_rank].processors);
        orphans_.exclude(process->pid());
        ranks_.push_back({std::move(process), false, std::nullopt});
    } catch (const std::runtime_error& error) {
        fail({1, false, "cannot start rank " + std::to_string(rank) + ": " + error.what(), Weight::kLauncher});
        kill();
    }
}

void Job::on_end(Process& process) {
    orphans_.include(process.pid());
    judge(process);
    advance();
}

void Job::judge(const Process& process) {
    const Ending& ending = *process.ending();
    const std::string name = "rank " + std::to_string(process.rank()) + " (pid " + std::to_string(process.pid()) + ")";
    if (process.exec_error() != 0) {
        if (!failure_) {
            fail({ending.code(), false, "cannot run '" + plan_.program[0] + "': " + std::strerror(process.exec_error()),
                  Weight::kLauncher});
        }
        kill();
    } else if (phase_ <= Phase::kReporting && !ending.ok()) {
        const bool wanted = std::count(passed_on_.begin(), passed_on_.end(), ending.signal) != 0;
        plan_.records->note(process.rank(), ending, process.last_words());
        gather({ending.code(), !wanted, name + " " + ending.text(), weight_of(ending), process.rank()});
    }
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

// Takes the failure that explains the others for that of the job, and tells of every other death by a signal.
void Job::decide() {
    if (std::exchange(decided_, true) || gathered_.empty()) return;
    const auto cause = std::max_element(gathered_.begin(), gathered_.end(),
                                        [](const Failure& a, const Failure& b) { return a.weight < b.weight; });
    const bool is_here = !failure_ && cause->weight > elsewhere_;
    if (is_here) fail(*cause);
    for (auto other = gathered_.begin(); other != gathered_.end(); ++other) {
        // A rank that exits may make others abort, and one that aborts others exit.
        const bool may_matter =
            other->weight > Weight::kStatus || (other == gathered_.begin() && cause->weight == Weight::kAbort);
        if (may_matter && !(is_here && other == cause)) say(*other);
    }
}

void Job::say(const Failure& failure) {
    output_.line("ddprun on " + plan_.host + ": " + failure.sentence);
}

void Job::fail(Failure failure) {
    const std::string why = failure.rank < 0 ? "" : plan_.records->explain(failure.rank);
    if (!why.empty()) failure.sentence += ": " + why;
    say(failure);
    failure_ = std::move(failure);
}

void Job::enter(Phase phase, Milliseconds bound) {
    phase_ = phase;
    deadline_ = Clock::now() + bound;
    tick_.start(kTick);
}

void Job::pass_on(int signal) {
    passed_on_.push_back(signal);
    for (const Rank& rank : ranks_) rank.process->signal(signal);
}

void Job::stop(int signal) {
    for (const Rank& rank : ranks_) {
        if (!rank.gone) rank.process->signal_group(signal);
    }
    if (phase_ == Phase::kRunning || phase_ == Phase::kReporting) enter(Phase::kStopping, plan_.grace);
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
        if (rank.process->running() && now - rank.process->last_active() < kQuietTime) quiet = false;
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

bool Job::all_gone() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.gone; });
}

void Job::advance() {
    if (phase_ == Phase::kEnded) return;
    for (Rank& rank : ranks_) end_leftovers(rank);
    const bool gathering = phase_ == Phase::kReporting && !decided_ && Clock::now() < decide_at_;
    // Another node may know better even when all ranks of this one have gone.
    if (gathering && plan_.spans_nodes && Clock::now() < deadline_) return;
    if (phase_ != Phase::kDraining && all_gone()) enter(Phase::kDraining, kDrainTime);
    if (phase_ > Phase::kReporting || (phase_ == Phase::kReporting && !gathering)) decide();
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

// A rank that has ended takes the processes of its group with it: first with SIGTERM, then with SIGKILL.
void Job::end_leftovers(Rank& rank) {
    if (rank.gone || rank.process->running()) return;
    if (rank.process->group_gone()) {
        rank.gone = true;
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
    const bool drained =
        std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process->drained(); });
    // A slow reader of ddprun's own output is waited for; it is not the ranks that keep the pipes open then.
    if (!drained && output_.congested()) deadline_ = Clock::now() + kDrainTime;
    if (!(no_orphans && drained) && Clock::now() < deadline_) return;
    for (const Rank& rank : ranks_) rank.process->close_output();
    tick_.stop();
    phase_ = Phase::kEnded;
}

// SIGKILL did not help within kKillTime.
void Job::abandon(Rank& rank) {
    rank.gone = true;
    output_.say("rank " + std::to_string(rank.process->rank()) + " (pid " + std::to_string(rank.process->pid()) +
                ") or a process of its group does not go away after SIGKILL; leaving it behind");
}

}  // namespace ddprun
