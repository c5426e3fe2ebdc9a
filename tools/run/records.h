// The folder in which the ranks of this node keep their records, and what they tell of a failure.
// docs/record.md.
#pragma once

#include <optional>
#include <string>

#include "job_file.h"
#include "process.h"
#include "why/position.h"
#include "why/trace.h"

namespace ddprun {

class Records {
public:
    // folder: where the user wants to keep them; "": nowhere. Then they lie in memory, and go with
    // this object.
    Records(const std::string& folder, JobFacts facts);
    ~Records();
    Records(const Records&) = delete;
    Records& operator=(const Records&) = delete;

    // Why nothing is recorded, for the user. "": it is.
    const std::string& why_none() const { return why_none_; }
    // Each generation has a folder of its own. Records that go with the job go with their
    // generation. Throws std::runtime_error if the folder cannot be made.
    void begin_generation(int generation);
    // The reason why --status may not find the job in this generation. "": it does.
    const std::string& why_unseen() const { return why_unseen_; }
    // A rank is about to be started again. If records go with the job, those of its last process
    // stay, which was started at since_ns.
    void begin_again(int rank, std::int64_t since_ns) const;
    // The value of DDP_RECORD in this generation. "": there is none.
    const std::string& folder() const { return folder_; }
    // A folder that goes with the job, and in which --status finds it: who outlives ddprun removes
    // it. "": none.
    const std::string& temporary() const { return temporary_; }

    // words: the last ones of the rank. Returns why the records do not hold it. "": they do, or
    // there are none.
    std::string note(int rank, const Ending& ending, const std::string& words) const;
    // The part of the records about the failure of this rank that its process does not tell: where
    // it was, who waited for it; or for whom all wait. since_ns: when the process was started; the
    // rank may have had others before. all_end: ddprun is about to end the other ranks. rank -1:
    // about any failure. If the records tell nothing, the text says which record cannot be read.
    // "": nothing.
    std::string explain(int rank, std::int64_t since_ns, bool all_end) const;
    // Writes a timeline of the generation. Throws std::runtime_error.
    void write_trace(const std::string& file, const why::Steps& steps) const;
    // Packs this node's records, in at most so many bytes, for a job of several nodes, whose
    // records end in the folder of node 0. unpack() takes those of another node.
    std::string pack(std::uint64_t bytes) const;
    void unpack(const std::string& packed) const;
    // Which records cannot be read; then a sentence that says who holds the job up, and where each
    // rank is, a line each.
    std::string describe() const;
    // A page that shows this node's part of the generation (tools/why/report.h). Throws
    // std::exception if there is none.
    void write_report(const std::string& path) const;

private:
    void make_temporary(bool kept);
    void note_stopped(const libddp::record::Group& group) const;

    JobFacts facts_;
    std::string why_none_, why_unseen_, temporary_, root_, folder_;
};

}  // namespace ddprun
