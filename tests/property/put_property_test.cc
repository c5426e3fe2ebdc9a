// ddp_put_on and ddp_get_on: in every generated case the memory that the program gives may be used
// again at once, what it gets is what the reference says, and a wrong call changes nothing.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "property/elements.h"
#include "property/worlds.h"
#include "support/device_model.h"

namespace property {
namespace {

constexpr int kDevices = 2, kStreams = 3;  // for each device; the first is null
constexpr int kGap = 4;                    // elements beside what is given or got
constexpr int kAsItWas = 0x5a;

struct PutParam {
    ddp_dtype dtype = DDP_F32;
    int count = 1, device = -1, uses = 1;  // -1: the CPU
    bool view = false;
};

struct PutStep {
    bool sync = true, begin = false;
    unsigned seed = 0;  // of all that ranks do
};

struct PutCase {
    int world = 1;
    Backend backend = Backend::kShm;
    std::vector<PutParam> params;
    std::vector<PutStep> steps;
};

std::ostream& operator<<(std::ostream& out, const PutCase& c) {
    out << "world " << c.world << ", " << backend_name(c.backend);
    for (const PutParam& p : c.params)
        out << "\n"
            << ddp_dtype_name(p.dtype) << "[" << p.count << "] on " << p.device
            << (p.view ? " view, " : " copy, ") << p.uses << " uses";
    for (const PutStep& s : c.steps)
        out << "\n"
            << (s.sync ? "synced" : "no_sync") << (s.begin ? ", step_begin" : "") << ", seed "
            << s.seed;
    return out << "\n";
}

rc::Gen<int> number(int from, int to) {
    return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(from, to + 1));
}

template <class T>
rc::Gen<std::vector<T>> some(int most, rc::Gen<T> element) {
    return rc::gen::resize(most, rc::gen::nonEmpty<std::vector<T>>(
                                     rc::gen::container<std::vector<T>>(std::move(element))));
}

rc::Gen<PutCase> any_put_case() {
    using rc::gen::set;
    const auto param = rc::gen::build<PutParam>(
        set(&PutParam::dtype,
            rc::gen::elementOf(std::vector<ddp_dtype>{DDP_F32, DDP_F64, DDP_F16, DDP_BF16, DDP_I32,
                                                      DDP_I64, DDP_U8, DDP_C64, DDP_C128})),
        set(&PutParam::count,
            rc::gen::weightedOneOf<int>({{4, number(0, 9)}, {1, number(10, 3000)}})),
        set(&PutParam::device, number(-1, kDevices - 1)), set(&PutParam::uses, number(1, 2)),
        set(&PutParam::view, rc::gen::arbitrary<bool>()));
    const auto step =
        rc::gen::build<PutStep>(set(&PutStep::sync, rc::gen::arbitrary<bool>()),
                                set(&PutStep::begin, rc::gen::arbitrary<bool>()),
                                set(&PutStep::seed, rc::gen::cast<unsigned>(number(0, 1 << 20))));
    return rc::gen::build<PutCase>(
        set(&PutCase::world, number(1, 3)),
        set(&PutCase::backend, rc::gen::elementOf(std::vector<Backend>{
                                   Backend::kThreads, Backend::kShm, Backend::kStreams})),
        set(&PutCase::params, some(5, param)), set(&PutCase::steps, some(4, step)));
}

// Multiples of the number of ranks where a mean divides, and not negative where a type is not.
Values gradient(const PutCase& c, const PutParam& p, std::size_t seed) {
    Values values(static_cast<std::size_t>(p.count) * (is_complex(p.dtype) ? 2 : 1));
    for (std::size_t k = 0; k < values.size(); ++k) {
        const auto drawn = static_cast<std::int64_t>((seed * 31 + k) * 2654435761u >> 7 & 0xffff);
        values[k] = p.dtype == DDP_U8 ? drawn % 10 : (drawn % 7 - 3) * c.world;
    }
    return values;
}

// Memory of the program's, with a gap before and after the gradient.
class Block {
public:
    Block(const PutParam& p) : device_(p.device), size_(ddp_dtype_size(p.dtype)) {
        bytes_ = (static_cast<std::size_t>(p.count) + 2 * kGap) * size_;
        if (device_ >= 0)
            memory_ = static_cast<std::byte*>(fake::allocate(device_, bytes_));
        else
            memory_ = (on_cpu_ = std::vector<std::byte>(bytes_)).data();
    }
    ~Block() {
        if (device_ >= 0) fake::release(memory_);
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    std::byte* at(std::size_t offset) const { return memory_ + offset * size_; }
    // Enqueues: these bytes at the offset, and another value all around.
    void write(void* stream, std::size_t offset, std::vector<std::byte> bytes) {
        const auto body = [=, size = size_, all = bytes_](void* memory) {
            std::memset(memory, kAsItWas, all);
            if (!bytes.empty())
                std::memcpy(static_cast<std::byte*>(memory) + offset * size, bytes.data(),
                            bytes.size());
        };
        if (device_ < 0) return body(memory_);
        if (last_ && stream != *last_) fake::wait(device_, *last_);
        last_ = stream;
        fake::launch(device_, stream, [body, memory = memory_] { body(fake::alias(memory)); });
    }
    // All of it, when the stream comes to this point.
    std::vector<std::byte> read(void* stream) const {
        if (device_ < 0) return on_cpu_;
        fake::wait(device_, stream);
        const auto* begin = fake::at<std::byte>(memory_);
        return {begin, begin + bytes_};
    }

private:
    const int device_;
    const std::size_t size_;
    std::size_t bytes_ = 0;
    std::byte* memory_ = nullptr;
    std::optional<void*> last_;  // the stream that has it
    std::vector<std::byte> on_cpu_;
};

// The facts that a rank knows of a parameter: what has come since the last synced step, and what is
// in the place.
struct Known {
    bool any = false;
    Values sum, place;
};

// The calls of a step in the order of a rank: drawn from the step's seed, so every rank knows those
// of all.
struct Call {
    int param = 0;
    std::size_t use = 0, offset = 0;
    bool add = false;
    int stream = 0;
    int wrong = 0;  // a wrong call before this one; 0: none
};

std::vector<Call> calls_of(const PutCase& c, const PutStep& step, int rank) {
    std::mt19937 random(step.seed * 7 + static_cast<unsigned>(rank));
    std::vector<Call> calls;
    for (int p = 0; p < static_cast<int>(c.params.size()); ++p)
        for (int use = 0; use < c.params[static_cast<std::size_t>(p)].uses; ++use)
            calls.push_back({p, 0, random() % (2 * kGap), random() % 2 == 0,
                             static_cast<int>(random() % kStreams),
                             random() % 3 == 0 ? static_cast<int>(1 + random() % 6) : 0});
    std::shuffle(calls.begin(), calls.end(), random);
    std::vector<std::size_t> uses(c.params.size());
    for (Call& call : calls) call.use = uses[static_cast<std::size_t>(call.param)]++;
    return calls;
}

class PutRank {
public:
    PutRank(const PutCase& c, int rank, ddp_group* group)
        : c_(c), rank_(rank), group_(group), context_(group_) {
        streams_.resize(kDevices * kStreams);
        for (int d = 0; d < kDevices; ++d)
            for (int s = 1; s < kStreams; ++s)
                streams_[static_cast<std::size_t>(d * kStreams + s)] = fake::make_stream(d);
        for (const PutParam& p : c_.params) add(p);
        for (const PutParam& p : c_.params)
            if (p.device >= 0) context_.set_stream({DDP_DEVICE_CUDA, p.device}, stream(p, 1));
        other_device_ = static_cast<std::byte*>(fake::allocate(1, 64));
        first_device_ = static_cast<std::byte*>(fake::allocate(0, 64));
        known_.resize(static_cast<std::size_t>(c_.world), std::vector<Known>(c_.params.size()));
        context_.commit();
    }
    ~PutRank() {
        ddp_context_free(context_.release());
        if (!fake::settle()) differ("the devices do not come to an end");
        for (void* stream : streams_)
            if (stream) fake::free_stream(stream);
        fake::release(other_device_);
        fake::release(first_device_);
    }
    PutRank(const PutRank&) = delete;
    PutRank& operator=(const PutRank&) = delete;

    void run() {
        for (std::size_t i = 0; i < c_.steps.size(); ++i) step(i);
    }
    const std::string& difference() const { return difference_; }

private:
    void add(const PutParam& p) {
        given_.push_back(std::make_unique<Block>(p));
        got_.push_back(std::make_unique<Block>(p));
        own_.push_back(p.view ? nullptr : std::make_unique<Block>(p));
        std::string name = std::to_string(given_.size());
        name.insert(0, 1, 'p');
        const std::int64_t shape = p.count;
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name.c_str();
        desc.shape = &shape;
        desc.ndim = 1;
        desc.dtype = desc.grad_dtype = p.dtype;
        if (p.device >= 0) desc.device = {DDP_DEVICE_CUDA, p.device};
        desc.grad = p.view ? nullptr : own_.back()->at(kGap);
        desc.uses = static_cast<std::uint32_t>(p.uses);
        ddp_param id = -1;
        ddp::detail::call(ddp_register_param, context_.get(), &desc, &id);
    }

    const PutParam& param(int id) const { return c_.params[static_cast<std::size_t>(id)]; }
    // Null is rank 0's alone: one rank would wait there for what another enqueues behind it.
    void* stream(const PutParam& p, int number) const {
        if (rank_ > 0) number = std::max(number, 1);
        return p.device < 0 ? nullptr
                            : streams_[static_cast<std::size_t>(p.device * kStreams + number)];
    }
    std::byte* place(int id) {
        return param(id).view ? context_.grad_view<std::byte>(id)
                              : own_[static_cast<std::size_t>(id)]->at(kGap);
    }

    void step(std::size_t index) {
        const PutStep& step = c_.steps[index];
        context_.set_sync(step.sync);
        if (step.begin) context_.step_begin();
        for (int rank = 0; rank < c_.world; ++rank)
            for (const Call& call : calls_of(c_, step, rank)) {
                const Values values = gradient(
                    c_, param(call.param),
                    step.seed + static_cast<unsigned>(1000 * rank + 100 * call.param) + call.use);
                note(known_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(call.param)],
                     values, call.add);
                if (rank == rank_) put(call, values);
            }
        std::mt19937 random(step.seed * 13 + static_cast<unsigned>(rank_));
        if (random() % 2 == 0 && on_one_device())
            context_.finalize_on(stream(*on_one_device(), static_cast<int>(random() % kStreams)));
        else
            context_.finalize();
        end(step);
        for (int id = 0; id < static_cast<int>(c_.params.size()); ++id)
            get(id, static_cast<int>(random() % kStreams), random() % (2 * kGap),
                random() % 3 == 0 ? static_cast<int>(1 + random() % 6) : 0);
    }

    // Null: there are several, or none.
    const PutParam* on_one_device() const {
        const PutParam* found = nullptr;
        for (const PutParam& p : c_.params) {
            if (p.device < 0) continue;
            if (found && found->device != p.device) return nullptr;
            found = &p;
        }
        return found;
    }

    static void note(Known& known, const Values& values, bool add) {
        if (!known.any || !add) {
            known.sum = values;
        } else {
            for (std::size_t k = 0; k < values.size(); ++k) known.sum[k] += values[k];
        }
        known.any = true;
        known.place = known.sum;
    }

    void end(const PutStep& step) {
        if (!step.sync) return;
        for (std::size_t p = 0; p < c_.params.size(); ++p) {
            Values mean(known_[0][p].sum.size());
            for (auto& of_rank : known_)
                for (std::size_t k = 0; k < mean.size(); ++k) mean[k] += of_rank[p].sum[k];
            for (auto& value : mean) value /= c_.world;
            for (auto& of_rank : known_) of_rank[p] = {false, {}, mean};
        }
    }

    // The memory is used for something else at once.
    void put(const Call& call, const Values& values) {
        const PutParam& p = param(call.param);
        void* const on = stream(p, call.stream);
        Block& block = *given_[static_cast<std::size_t>(call.param)];
        const std::uint32_t flags = call.add ? std::uint32_t{DDP_PUT_ADD} : 0u;
        if (call.wrong)
            refused(call.param, call.wrong, block.at(call.offset),
                    [&](int id, void* memory, std::uint32_t more) {
                        return ddp_put_on(context_.get(), id, memory, flags | more, on, nullptr);
                    });
        block.write(on, call.offset, bytes_of(values, p.dtype));
        context_.put_on(call.param, block.at(call.offset), on, flags);
        if (call.wrong && ddp_get_on(context_.get(), call.param, block.at(0), on, nullptr) !=
                              DDP_ERROR_INVALID_STATE)
            differ("ddp_get_on in a step");
        block.write(on, 0, {});
    }

    void get(int id, int number, std::size_t offset, int wrong) {
        const PutParam& p = param(id);
        void* const on = stream(p, number);
        Block& block = *got_[static_cast<std::size_t>(id)];
        block.write(on, 0, {});
        if (wrong)
            refused(id, wrong == 6 ? 1 : wrong, block.at(offset),
                    [&](int which, void* memory, std::uint32_t) {
                        return ddp_get_on(context_.get(), which, memory, on, nullptr);
                    });
        context_.get_on(id, block.at(offset), on);
        const auto bytes = bytes_of(
            known_[static_cast<std::size_t>(rank_)][static_cast<std::size_t>(id)].place, p.dtype);
        auto expected = block.read(on);
        std::fill(expected.begin(), expected.end(), std::byte{kAsItWas});
        std::copy(bytes.begin(), bytes.end(),
                  expected.begin() + static_cast<std::ptrdiff_t>(offset * ddp_dtype_size(p.dtype)));
        if (block.read(on) != expected) differ("p" + std::to_string(id) + " holds something else");
    }

    // A wrong call, which only a parameter without elements may survive.
    template <class Function>
    void refused(int id, int wrong, std::byte* good, Function function) {
        const PutParam& p = param(id);
        static std::byte on_cpu[64];
        ddp_status expected = DDP_ERROR_INVALID_ARGUMENT, found = DDP_OK;
        if (wrong == 1)
            found = function(static_cast<int>(c_.params.size()), good, 0);
        else if (wrong == 6)
            found = function(id, good, 0x8), expected = DDP_ERROR_UNSUPPORTED;
        else if (p.count == 0)
            return;
        else if (wrong == 2)
            found = function(id, nullptr, 0);
        else if (wrong == 3)
            found = function(id, p.device < 0 ? first_device_ : on_cpu, 0);
        else if (wrong == 4)
            found = function(id, p.device == 0 ? other_device_ : first_device_, 0);
        else if (p.count > 1)  // overlaps
            found = function(id, place(id) + ddp_dtype_size(p.dtype), 0);
        else
            return;
        if (found != expected)
            differ("p" + std::to_string(id) + ": wrong call " + std::to_string(wrong) +
                   " returned " + std::to_string(found));
    }

    void differ(const std::string& text) {
        if (difference_.empty()) difference_ = "rank " + std::to_string(rank_) + ": " + text;
    }

    const PutCase& c_;
    const int rank_;
    BorrowedGroup group_;
    std::vector<std::unique_ptr<Block>> given_, got_, own_;  // they outlive the context
    std::vector<void*> streams_;
    std::byte *other_device_ = nullptr, *first_device_ = nullptr;
    ddp::Context context_;
    std::vector<std::vector<Known>> known_;  // by rank and parameter
    std::string difference_;
};

std::string run_case(const PutCase& c, Worlds& worlds) {
    std::mutex mutex;
    std::string result;
    const auto note = [&](const std::string& text) {
        const std::lock_guard lock(mutex);
        if (!text.empty()) result += text + "\n";
    };
    for (const auto& error : worlds.get(c.world, c.backend, 1).run([&](int rank, ddp_group*group) {
             PutRank run(c, rank, group);
             run.run();
             note(run.difference());
         }))
        note(error);
    return result;
}

class PutProperty : public DeviceTest {};

TEST_F(PutProperty, WhatIsGotIsWhatTheReferenceSays) {
    setenv("RC_PARAMS", "max_success=600", 0);
    Worlds worlds;
    std::string last_failure;
    const bool passed = rc::check("what is got is what the reference says", [&] {
        const PutCase c = *any_put_case();
        const std::string wrong = run_case(c, worlds);
        if (wrong.empty()) return;
        if (last_failure.empty())
            std::cerr << "The first case that fails, before it is made smaller:\n" << c << wrong;
        last_failure = wrong;
        worlds.set_timeout(2'000);
        RC_FAIL(wrong);
    });
    EXPECT_TRUE(passed) << last_failure;
}

}  // namespace
}  // namespace property
