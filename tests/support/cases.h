// Cases of a test that are many because their numbers differ.
#pragma once

#include <vector>

// A sanitizer looks at what threads and memory do, and takes every second case.
template <class Case>
std::vector<Case> fewer_if_sanitized(const std::vector<Case>& cases) {
#ifdef DDP_SANITIZED
    std::vector<Case> some;
    for (std::size_t i = 0; i < cases.size(); i += 2) some.push_back(cases[i]);
    return some;
#else
    return cases;
#endif
}
