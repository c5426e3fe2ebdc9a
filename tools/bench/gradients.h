// A context over parameters of f32, and the memory of their gradients.
#pragma once

#include <ddp/ddp.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "handles.h"
#include "models.h"
#include "options.h"

namespace bench {

// One gradient.
struct Gradient {
    float* data;
    std::size_t count;
};

// Where gradients lie that are not on the CPU, and the stream that writes them.
struct Place {
    ddp_device device;
    void* stream;
};

ddp_context_options context_options(const Settings& settings, std::uint32_t flags = 0);

// Gradients of a model in memory of the program's own.
class OwnGradients {
public:
    explicit OwnGradients(const Model& model);
    const std::vector<Gradient>& all() const { return gradients_; }

private:
    std::unique_ptr<float[]> memory_;
    std::vector<Gradient> gradients_;
};

// Choices for a model.
struct Extras {
    const Place* place = nullptr;                   // null: on the CPU
    bool norm = false;                              // counts the norm of all gradients
    const std::vector<Gradient>* values = nullptr;  // of the parameters
};

// The same parameters registered with libddp.
class SharedGradients {
public:
    // own: where the gradients lie (copy), or nullptr: in their buckets (view).
    SharedGradients(ddp_group* group, const ddp_context_options& options, const Model& model,
                    const std::vector<Gradient>* own, const Extras& extras = {});

    ddp_context* context() const { return context_.get(); }
    const std::string& name(std::size_t index) const { return names_[index]; }
    // On which the gradients come; null on the CPU.
    void* stream() const { return place_ ? place_->stream : nullptr; }
    const std::vector<Gradient>& all() const { return gradients_; }

    // Starts a step. The gradients may lie elsewhere afterwards.
    void begin_step();
    // Before a step: whether it communicates.
    void set_sync(bool sync) const;
    void ready(std::size_t index) const;
    void finalize() const;
    // With DDP_CONTEXT_VOTES: casts these bits; those that any rank has cast.
    void vote(std::uint32_t bits) const;
    std::uint32_t votes() const;
    // By that norm.
    void clip(double max_norm) const;
    // Instead: the end without waiting, and for each parameter, before finalize(), that the host
    // (CPU) or this stream waits.
    void finalize_async() const;
    void wait(std::size_t index, void* stream) const;

private:
    void follow_views();

    Context context_;
    std::vector<Gradient> gradients_;
    std::vector<std::string> names_;
    bool view_;
    std::optional<Place> place_;
    std::int64_t generation_ = -1;
};

}  // namespace bench
