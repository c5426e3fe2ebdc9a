// Which parameters were used in a step, here and on any rank (Li et al. 2020, section 3.2.3).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"

namespace libddp {

class UsedMap {
public:
    explicit UsedMap(std::size_t count);

    void clear();
    void mark(std::int32_t param) { here_[static_cast<std::size_t>(param)] = 1; }
    // Asks the other ranks. The answer is there after wait(). tag: the step's.
    void exchange(Group& group, const OpTag& tag);
    // Throws what went wrong.
    void wait();
    // Instead of an exchange: what is used here is what counts.
    void assume_local() { anywhere_ = here_; }

    const std::vector<std::uint8_t>& here() const { return here_; }
    const std::vector<std::uint8_t>& anywhere() const { return anywhere_; }

private:
    std::vector<std::uint8_t> here_, anywhere_;
    std::shared_ptr<std::vector<std::uint8_t>> travelling_;  // an operation may outlast this object
    WorkPtr work_;
};

}  // namespace libddp
