// A small model on one rank: parameters with gradients of one's own (copy) or in buckets (view),
// through the public C++ wrapper.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"

// The group handle belongs to on_ranks; this lends it to the wrapper without passing ownership.
class BorrowedGroup : public ddp::Group {
public:
    explicit BorrowedGroup(ddp_group* group) : ddp::Group(group) {}
    ~BorrowedGroup() { release(); }
};

struct Model {
    Model(ddp_group* group, std::vector<std::int64_t> sizes, bool view,
          ddp_context_options options = ddp::Context::defaults())
        : borrowed(group), context(borrowed, options), sizes_(std::move(sizes)) {
        for (std::size_t i = 0; i < sizes_.size(); ++i) {
            data.emplace_back(static_cast<std::size_t>(sizes_[i]));
            own.emplace_back(view ? 0 : static_cast<std::size_t>(sizes_[i]));
            std::string name = std::to_string(i);
            name.insert(0, 1, 'p');
            context.add_param<float>(name, {sizes_[i]}, data.back().data(),
                                     view ? nullptr : own.back().data());
        }
    }

    int count() const { return static_cast<int>(sizes_.size()); }
    std::size_t size(int i) const {
        return static_cast<std::size_t>(sizes_[static_cast<std::size_t>(i)]);
    }

    // Where the caller writes and reads the gradient.
    float* grad(int i) {
        auto& mine = own[static_cast<std::size_t>(i)];
        return mine.empty() ? context.grad_view<float>(i) : mine.data();
    }
    // All gradients, one after another.
    std::vector<float> gradients() {
        std::vector<float> all;
        for (int i = 0; i < count(); ++i) all.insert(all.end(), grad(i), grad(i) + size(i));
        return all;
    }
    void fill(int i, float value) {
        float* values = grad(i);
        const std::size_t count = size(i);
        for (std::size_t k = 0; k < count; ++k) values[k] = value + static_cast<float>(k);
    }
    // Whether gradient i is value, value + step, value + 2 step, ...
    bool holds(int i, float value, float step = 1) {
        const float* values = grad(i);
        const std::size_t count = size(i);
        for (std::size_t k = 0; k < count; ++k)
            if (values[k] != value + step * static_cast<float>(k)) return false;
        return true;
    }

    std::vector<std::vector<float>> data, own;
    BorrowedGroup borrowed;
    ddp::Context context;  // goes first: an update in the step may write values until then

private:
    std::vector<std::int64_t> sizes_;
};
