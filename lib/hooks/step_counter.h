// How many synced steps a hook has seen, also before it was saved and loaded again.
#pragma once

#include <cstdint>

namespace libddp {

class StepCounter {
public:
    // number: what the bucket says. Buckets of one step come with the same; resumed contexts number theirs from 0 again.
    void note(std::int64_t number) {
        if (number == seen_) return;
        seen_ = number;
        ++begun_;
    }
    // Steps begun, the current one included.
    std::int64_t begun() const { return begun_; }
    void resume(std::int64_t begun) {
        begun_ = begun;
        seen_ = -1;
    }

private:
    std::int64_t begun_ = 0, seen_ = -1;
};

}  // namespace libddp
