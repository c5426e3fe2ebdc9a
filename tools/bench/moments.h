// Moments of a step: when the host, or a stream of a GPU, came to a point.
#pragma once

#include <cstddef>
#include <vector>

#include "measure.h"

namespace bench {

class Moments {
public:
    virtual ~Moments() = default;
    // Forgets all, and makes room for so many.
    virtual void reset(std::size_t count) = 0;
    // The moment when the stream comes to this point, or now. Any thread; none at the same time for
    // the same moment.
    virtual void mark(std::size_t moment, void* stream) noexcept = 0;
    // Milliseconds; waits until the moment is there.
    virtual double at(std::size_t moment) = 0;
    // The time of the host's clock, on the same scale.
    virtual double now() const noexcept = 0;
};

// By the host's clock, whatever the stream.
class HostMoments final : public Moments {
public:
    void reset(std::size_t count) override { times_.assign(count, start_); }
    void mark(std::size_t moment, void*) noexcept override { times_[moment] = now_ms(); }
    double at(std::size_t moment) override { return times_[moment] - start_; }
    double now() const noexcept override { return now_ms() - start_; }

private:
    const double start_ = now_ms();
    std::vector<double> times_;
};

}  // namespace bench
