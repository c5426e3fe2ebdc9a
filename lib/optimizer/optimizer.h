// An optimizer of a context's parameters. Semantics: include/ddp/optimizer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "optimizer/device_updates.h"
#include "optimizer/methods.h"
#include "optimizer/own_piece.h"
#include "optimizer/settings.h"
#include "util/process.h"

namespace libddp {

class Optimizer : public std::enable_shared_from_this<Optimizer> {
public:
    // Collective: ranks compare name and options.
    Optimizer(Context& context, std::string_view name, std::string_view options);

    // param -1: all. Throws INVALID_ARGUMENT, and nothing has changed.
    void set(std::int32_t param, const std::string& key, double value);
    void step(double scale);
    // From the next step on, in it. The context keeps the optimizer then.
    void step_inside(double scale);

    // Numbers that last from step to step.
    struct State {
        const char* name;
        std::int32_t param;
        ddp_dtype dtype;
        std::int64_t first, count;
        void* data;
        ddp_device device;
    };
    // The states of all pieces, one after another.
    std::vector<State> states();

private:
    Context& context() const;
    void require_updatable() const;
    std::vector<ShardPiece> own_pieces() const;
    void require_same_pieces() const;
    std::uint64_t hash(double scale) const;
    void require_matrices() const;
    void require_steppable() const;
    void require_inside() const;
    bool inside() const { return !inside_.expired(); }
    bool by_elements() const;
    void update_inside(const ddp_piece& given, std::int64_t first, std::int64_t count,
                       double scale);
    std::vector<Update> updates(double scale);
    void bring_norms_of_devices();
    void add_norms_of_others(std::vector<Update>& updates, std::uint64_t how);

    std::weak_ptr<const void> life_;  // of the context
    Context& context_;
    const std::string name_;
    std::unique_ptr<const Method> method_;
    std::vector<Settings> settings_;  // of each parameter
    std::vector<OwnPiece> pieces_;
    std::weak_ptr<const double> inside_;  // the scale, while the context steps this optimizer
    std::unique_ptr<DeviceUpdates> on_devices_;  // null: all are on the CPU
    bool stepped_ = false;                       // once
    bool torn_ = false;                          // a step has begun and not ended
};

}  // namespace libddp

struct ddp_optimizer {
    std::shared_ptr<libddp::Optimizer> impl;
    libddp::Origin origin{};
};
