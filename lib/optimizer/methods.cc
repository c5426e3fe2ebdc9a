#include "optimizer/methods.h"

#include <cmath>
#include <limits>

#include "kernels/updates.h"
#include "util/error.h"

namespace libddp {
namespace {

using Kinds = std::vector<SettingKind>;
using Form = SettingKind::Form;

constexpr double kAny = std::numeric_limits<double>::infinity();
constexpr const char *kMomentum = "momentum_buffer", *kFirst = "exp_avg", *kSecond = "exp_avg_sq";

// The direction of a block.
struct Direction {
    alignas(64) std::byte numbers[OwnPiece::kBlock * sizeof(double)];
};

cpu::AdamStep adam_step(Update& u, const std::string& prefix) {
    const auto setting = [&](const char* name) { return u.settings[prefix + name]; };
    const double beta1 = setting("beta1"), beta2 = setting("beta2");
    const auto t = static_cast<double>(u.piece.steps());
    return {beta1,
            beta2,
            setting("eps"),
            u.scale,
            1 - std::pow(beta1, t),
            std::sqrt(1 - std::pow(beta2, t)),
            setting("lr"),
            setting("weight_decay")};
}

void add_moments(OwnPiece& piece) {
    piece.add_array(kFirst);
    piece.add_array(kSecond);
}

void adamw(Update& u, const std::string& prefix) {
    const cpu::AdamStep step = adam_step(u, prefix);
    if (u.device)
        return u.device->add(DDP_UPDATE_ADAMW, u.piece, u.gradient, kFirst, kSecond, step);
    u.for_blocks([&](void* values, const void* gradients, std::size_t first, std::size_t n) {
        cpu::adamw_step(values, gradients, u.piece.array(kFirst, first),
                        u.piece.array(kSecond, first), n, u.piece.dtype(), step);
    });
}

class Sgd final : public Method {
public:
    const Kinds& settings() const override { return kinds_; }
    void check(const Settings& settings) const override {
        if (settings["nesterov"] != 0 && settings["momentum"] == 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT,
                      "nesterov is 1 and momentum is 0; Nesterov's method needs a momentum");
    }
    void add_arrays(OwnPiece& piece, const Settings& settings) const override {
        if (settings["momentum"] != 0) piece.add_array(kMomentum);
    }
    void step(Update& u) const override {
        const cpu::SgdStep step{
            u.settings["lr"], u.settings["momentum"],     u.settings["weight_decay"], 1,
            u.scale,          u.settings["nesterov"] != 0};
        if (u.device)
            return u.device->add(DDP_UPDATE_SGD, u.piece, u.gradient,
                                 step.momentum != 0 ? kMomentum : "", "", step);
        u.for_blocks([&](void* values, const void* gradients, std::size_t first, std::size_t n) {
            cpu::sgd_step(values, gradients, u.piece.array(kMomentum, first), n, u.piece.dtype(),
                          step);
        });
    }

private:
    const Kinds kinds_ = {{"lr", 1e-3, kAny},
                          {"momentum", 0, 1, true},
                          {"weight_decay", 0, kAny},
                          {"nesterov", 0, 1, false, Form::kWhole}};
};

class AdamW final : public Method {
public:
    const Kinds& settings() const override { return kinds_; }
    void add_arrays(OwnPiece& piece, const Settings&) const override { add_moments(piece); }
    void step(Update& u) const override { adamw(u, ""); }

private:
    const Kinds kinds_ = {{"lr", 1e-3, kAny},
                          {"beta1", 0.9, 1, true},
                          {"beta2", 0.999, 1, true},
                          {"eps", 1e-8, kAny},
                          {"weight_decay", 0.01, kAny}};
};

class Lamb final : public Method {
public:
    const Kinds& settings() const override { return kinds_; }
    void add_arrays(OwnPiece& piece, const Settings&) const override { add_moments(piece); }
    bool measures() const override { return true; }
    void measure(Update& u) const override {
        if (u.device)
            return u.device->measure(u.piece, u.gradient, kFirst, kSecond, adam_step(u, ""),
                                     u.norms.values, u.norms.direction);
        follow(u, u.gradient, [&u](void* values, const void* direction, std::size_t n) {
            u.norms.values.add_squares(values, n, u.piece.dtype());
            u.norms.direction.add_squares(direction, n, u.piece.dtype());
        });
    }
    // Computes the direction again, which is cheaper than to keep it.
    void step(Update& u) const override {
        const double value = std::sqrt(u.norms.values.value());
        const double direction = std::sqrt(u.norms.direction.value());
        const double trust = value == 0 || direction == 0 ? 1 : value / direction;
        const double rate = u.settings["lr"] * trust;
        if (u.device) {
            cpu::AdamStep along = adam_step(u, "");
            along.rate = rate;
            return u.device->add(DDP_UPDATE_LAMB, u.piece, nullptr, kFirst, kSecond, along);
        }
        const cpu::SgdStep step{rate};
        follow(u, nullptr, [&](void* values, const void* numbers, std::size_t n) {
            cpu::sgd_step(values, numbers, nullptr, n, u.piece.dtype(), step);
        });
    }

private:
    template <class Body>
    static void follow(Update& u, const void* gradient, Body body) {
        const cpu::AdamStep step = adam_step(u, "");
        Direction direction;
        u.piece.update(gradient, [&](void* values, const void* gradients, std::size_t first,
                                     std::size_t n) {
            cpu::lamb_direction(direction.numbers, values, gradients, u.piece.array(kFirst, first),
                                u.piece.array(kSecond, first), n, u.piece.dtype(), step);
            body(values, direction.numbers, n);
        });
    }

    const Kinds kinds_ = {{"lr", 1e-3, kAny},
                          {"beta1", 0.9, 1, true},
                          {"beta2", 0.999, 1, true},
                          {"eps", 1e-6, kAny},
                          {"weight_decay", 0.01, kAny}};
};

class Muon final : public Method {
public:
    const Kinds& settings() const override { return kinds_; }
    const char* why_not_on_devices() const override {
        return "is on a device, and libddp multiplies matrices for muon on the CPU only; step it "
               "with adamw, lamb or sgd there";
    }
    bool needs_whole(const Param& param, const Settings& settings) const override {
        return param.shape.size() >= 2 && settings["adamw"] == 0;
    }
    void add_arrays(OwnPiece& piece, const Settings& settings) const override {
        needs_whole(piece.param(), settings) ? piece.add_array(kMomentum) : add_moments(piece);
    }
    void step(Update& u) const override {
        if (!needs_whole(u.piece.param(), u.settings)) return adamw(u, "adamw_");
        const ddp_dtype dtype = u.piece.dtype();
        const std::size_t size = dtype_size(dtype);
        const auto rows = static_cast<std::size_t>(u.piece.param().shape[0]);
        const std::size_t columns = u.piece.count() / rows;
        std::vector<std::byte> direction(u.piece.count() * size);
        const cpu::MuonStep momentum{u.settings["momentum"], u.scale, u.settings["nesterov"] != 0};
        u.piece.update(u.gradient,
                       [&](void*, const void* gradients, std::size_t first, std::size_t n) {
                           cpu::muon_direction(direction.data() + first * size, gradients,
                                               u.piece.array(kMomentum, first), n, dtype, momentum);
                       });
        cpu::orthogonalize(direction.data(), rows, columns, dtype,
                           static_cast<int>(u.settings["ns_steps"]), u.settings["eps"]);
        const double lr = u.settings["lr"];
        const cpu::SgdStep step{.rate = lr * growth(u, rows, columns),
                                .keep = 1 - lr * u.settings["weight_decay"]};
        u.piece.update(nullptr, [&](void* values, const void*, std::size_t first, std::size_t n) {
            cpu::sgd_step(values, direction.data() + first * size, nullptr, n, dtype, step);
        });
    }

private:
    // Makes updates of matrices of different shapes alike.
    static double growth(const Update& u, std::size_t rows, std::size_t columns) {
        const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
        return u.settings["match_rms_adamw"] != 0 ? 0.2 * std::sqrt(std::max(a, b))
                                                  : std::sqrt(std::max(1.0, a / b));
    }

    const Kinds kinds_ = {{"lr", 1e-3, kAny},
                          {"momentum", 0.95, 1, true},
                          {"weight_decay", 0.1, kAny},
                          {"nesterov", 1, 1, false, Form::kWhole},
                          {"eps", 1e-7, kAny},
                          {"ns_steps", 5, 99, false, Form::kWhole},
                          {"match_rms_adamw", 0, 1, false, Form::kWhole},
                          {"adamw", 0, 1, false, Form::kWhole, true},
                          {"adamw_lr", 3e-4, kAny},
                          {"adamw_beta1", 0.9, 1, true},
                          {"adamw_beta2", 0.95, 1, true},
                          {"adamw_eps", 1e-10, kAny},
                          {"adamw_weight_decay", 0, kAny}};
};

}  // namespace

std::unique_ptr<const Method> make_method(std::string_view name) {
    if (name == "sgd") return std::make_unique<Sgd>();
    if (name == "adamw") return std::make_unique<AdamW>();
    if (name == "lamb") return std::make_unique<Lamb>();
    if (name == "muon") return std::make_unique<Muon>();
    fail_call(DDP_ERROR_INVALID_ARGUMENT, "there is no optimizer '", name,
              "'; there are: sgd, adamw, lamb, muon");
}

}  // namespace libddp
