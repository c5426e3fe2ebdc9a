// Rounding and subnormal numbers as they are by default, whatever the thread that runs this has
// chosen: ranks must come to the same bits.
#pragma once

#include <cfenv>

namespace libddp {

class DefaultArithmeticScope {
public:
    DefaultArithmeticScope() {
        std::fegetenv(&before_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultArithmeticScope() { std::fesetenv(&before_); }
    DefaultArithmeticScope(const DefaultArithmeticScope&) = delete;
    DefaultArithmeticScope& operator=(const DefaultArithmeticScope&) = delete;

private:
    std::fenv_t before_;
};

}  // namespace libddp
