// One rank of a case: does through the public ABI what the case says, and compares every gradient
// with the reference.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "property/reference.h"
#include "support/model.h"

namespace property {

class RankRun {
public:
    RankRun(const Case& c, const std::vector<Moment>& moments, int rank, ddp_group* group);

    // Throws ddp::Error if a call fails.
    void run();
    // The first difference from the reference; empty if there is none. The steps go on after it, as
    // the other ranks wait for this one.
    const std::string& difference() const { return difference_; }

private:
    ddp_context_options options() const;
    void add_param(int id);
    void step(std::size_t index);
    void check_votes(std::size_t index);
    void freeze_and_skip(const Step& step);
    void backward(const Part& part, const Gradients& written);
    std::vector<int> announcements(const Part& part) const;
    // The library says that a gradient is final.
    void reduced(int id, bool used);
    void check_reduced(const Step& step);
    void wait_for_some(std::size_t index, const Part& part);

    // With shards: gives the values of the pieces that this rank owns another content, publishes
    // them, and looks at all values.
    void publish();
    bool sharded(const Step& step) const { return c_.shard && !step.no_sync; }
    // The same in the step. It may run on any thread.
    void update(const ddp_piece& piece);
    void give(const ddp_piece& piece, std::size_t step);
    void check_value(int id, std::size_t step);

    std::byte* memory(int id);
    void write(int id, const Gradients& gradients);
    // owned: only the elements that this rank owns.
    void compare(int id, const Gradients& gradients, const char* when, bool owned = false);
    void compare_all(const Gradients& gradients, const char* when, bool owned = false);
    void differ(const std::string& what);

    const Case& c_;
    const std::vector<Moment>& moments_;
    const int rank_;
    BorrowedGroup group_;
    // Gradients that are no views, one after another, with and without gaps. It outlives the
    // context.
    std::vector<std::byte> block_;
    std::size_t used_ = 0;
    std::vector<std::vector<std::byte>> values_;  // with shards, by parameter
    ddp::Context context_;
    std::vector<std::byte*> own_;  // by parameter; null: a view
    std::size_t step_ = 0;
    Mask frozen_ = 0;
    bool synced_before_ = false;
    std::vector<int> reduced_;                       // how often it said so in this step
    std::vector<std::vector<std::size_t>> updates_;  // by parameter: the steps that update it
    std::vector<std::size_t> updated_;               // and how many have
    std::mutex mutex_;
    std::string difference_;
};

}  // namespace property
