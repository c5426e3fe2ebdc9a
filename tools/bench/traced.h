// Steps of training in which everything is timed: ddp-bench replay --trace.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "gradients.h"
#include "moments.h"
#include "options.h"
#include "report.h"
#include "trace.h"

namespace bench {

// Times the steps of a context through its public interface. A communication hook, the averaging
// allreduce that is the default, marks when a bucket's communication begins and ends; and each
// bucket is waited for by itself. Collective, as the steps are.
//
// On a device both marks are on the bucket's stream, which it shares with the next bucket. The end
// is exact where the operation is enqueued before the next bucket is launched, so that is waited
// for, for at most a millisecond. Where data goes through the host that is not enough: there the
// end is when the host had enqueued all.
class Traced {
public:
    // Writes all gradients, and says of each that it is ready: the last registered first.
    using Ready = std::function<void(std::size_t param)>;
    using Backward =
        std::function<void(const std::vector<Gradient>& gradients, const Ready& ready)>;

    // probe: a stream beside that of the gradients, on which buckets are waited for.
    Traced(SharedGradients& gradients, Moments& moments, const Options& options,
           void* probe = nullptr);
    ~Traced();
    Traced(const Traced&) = delete;
    Traced& operator=(const Traced&) = delete;

    // A few steps.
    void run(const Backward& backward);
    // Adds what they have shown to the row, and writes the trace if this is rank 0.
    void report(Row& row, int rank) const;

private:
    struct Bucket {
        Traced* owner = nullptr;
        std::size_t moments = 0;  // the first of three
        void* stream = nullptr;
        std::vector<std::size_t> params;
        std::size_t unwritten = 0;          // of them
        std::atomic<bool> enqueued{false};  // its operation; from then on enqueued_at is valid
        double enqueued_at = 0;
        bool late = false;  // that was after the next bucket was launched
    };

    static ddp_status reduce(void* self, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                             ddp_error** error);
    static ddp_status reduced(void* bucket, ddp_work** next, ddp_error** error);

    std::size_t begin_of(std::size_t param) const { return 2 * param; }
    std::size_t end_of(std::size_t param) const { return 2 * param + 1; }
    void step(const Backward& backward);
    void written(std::size_t param);
    void follow_plan();
    void collect(double asked);

    SharedGradients& gradients_;
    Moments& moments_;
    const Options& options_;
    void* const probe_;
    std::vector<Bucket> buckets_;
    std::vector<std::size_t> bucket_of_;  // by parameter
    Trace trace_;
    int steps_ = 0;
};

}  // namespace bench
