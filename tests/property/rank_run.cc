#include "property/rank_run.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>

namespace property {
namespace {

std::vector<ddp_param> ids_of(Mask mask) {
    std::vector<ddp_param> ids;
    for (int id = 0; id < kMostParams; ++id)
        if (has(mask, id)) ids.push_back(id);
    return ids;
}

std::string hex(const std::byte* bytes, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
        char digits[4];
        std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(bytes[i]));
        text += digits;
    }
    return text;
}

// Not "p" + text: GCC 12 then warns of a copy that does not happen.
std::string name_of(int id) {
    std::string name = std::to_string(id);
    return name.insert(0, 1, 'p');
}

std::size_t index_of(int value) {
    return static_cast<std::size_t>(value);
}

// A byte of the value that a parameter has from a step on.
std::byte value_of(int id, std::size_t step, std::size_t byte) {
    return static_cast<std::byte>(step * 31 + index_of(id) * 7 + byte * 13 + 1);
}

}  // namespace

RankRun::RankRun(const Case& c, const std::vector<Moment>& moments, int rank, ddp_group* group)
    : c_(c), moments_(moments), rank_(rank), group_(group), context_(group_, options()) {
    std::size_t bytes = 8;
    for (const Param& p : c_.params) bytes += index_of(p.count) * ddp_dtype_size(p.dtype) + 8;
    block_.resize(bytes);
    for (int id = 0; id < c_.param_count(); ++id) add_param(id);
    frozen_ = c_.frozen;
    if (frozen_) context_.set_frozen(ids_of(frozen_), true);
    updates_.resize(c_.params.size());
    updated_.resize(c_.params.size());
    for (std::size_t index = 0; index < c_.steps.size(); ++index)
        for (int id = 0; id < c_.param_count(); ++id)
            if (!c_.steps[index].no_sync && !has(c_.steps[index].gone(), id))
                updates_[index_of(id)].push_back(index);
    if (c_.callback)
        context_.set_reduced_callback([this](ddp_param id, bool used) { reduced(id, used); });
}

ddp_context_options RankRun::options() const {
    auto result = ddp::Context::defaults();
    result.reduction = c_.reduction;
    result.flags = c_.flags;
    if (c_.shard) result.flags |= DDP_CONTEXT_SHARD;
    if (c_.joins) result.flags |= DDP_CONTEXT_JOIN;
    if (c_.discovery == Discovery::kFindUnused) result.flags |= DDP_CONTEXT_FIND_UNUSED;
    if (c_.discovery == Discovery::kStaticGraph) result.flags |= DDP_CONTEXT_STATIC_GRAPH;
    result.bucket_cap_bytes = c_.bucket_cap;
    result.first_bucket_cap_bytes = c_.first_bucket_cap;
    result.bucket_caps = c_.caps.empty() ? nullptr : c_.caps.data();
    result.bucket_cap_count = c_.caps.size();
    result.rebuild_interval = c_.rebuild_interval;
    return result;
}

void RankRun::add_param(int id) {
    const Param& p = c_.params[index_of(id)];
    const auto bytes = index_of(p.count) * ddp_dtype_size(p.dtype);
    own_.push_back(p.home == Home::kView ? nullptr : block_.data() + used_);
    used_ += (bytes + 7) / 8 * 8;
    const std::string name = name_of(id);
    const std::int64_t shape = p.count;
    ddp_param_desc desc;
    ddp_param_desc_init(&desc);
    desc.name = name.c_str();
    desc.shape = &shape;
    desc.ndim = 1;
    desc.dtype = desc.grad_dtype = p.dtype;
    if (id % 2 != 0 && p.dtype == DDP_F32) desc.dtype = DDP_BF16;
    desc.grad = own_.back();
    if (p.delayed) desc.flags |= DDP_PARAM_DELAYED;
    if (p.home == Home::kInPlace) desc.flags |= DDP_PARAM_IN_PLACE;
    desc.uses = static_cast<std::uint32_t>(p.uses);
    if (c_.shard) {
        values_.emplace_back(index_of(p.count) * ddp_dtype_size(desc.dtype));
        desc.data = values_.back().data();
    }
    ddp_param param = -1;
    ddp::detail::call(ddp_register_param, context_.get(), &desc, &param);
    if (c_.shard) context_.set_owner(param, p.owner);
}

void RankRun::run() {
    context_.commit();
    if (c_.in_step)
        context_.set_update([this](const ddp_piece* const* pieces, std::size_t count) {
            for (std::size_t i = 0; i < count; ++i) update(*pieces[i]);
        });
    for (std::size_t index = 0; index < c_.steps.size() && c_.has_inputs(rank_, index); ++index)
        step(index);
    if (c_.joins) context_.join();
    for (int id = 0; id < c_.param_count() && c_.joins; ++id) check_value(id, c_.steps.size() - 1);
}

void RankRun::step(std::size_t index) {
    step_ = index;
    const Step& step = c_.steps[index];
    const Part& part = step.parts[index_of(rank_)];
    const Moment& moment = moments_[index];
    if (step.request_rebuild) context_.request_rebuild();
    if (c_.weighted()) context_.set_weight(part.weight);
    context_.set_sync(!step.no_sync);
    if (!step.late) freeze_and_skip(step);
    if (step.begin) context_.step_begin();
    if (step.late) freeze_and_skip(step);
    if (c_.votes()) {
        context_.vote(part.vote * DDP_VOTE_USER);
        context_.vote_level(static_cast<std::int32_t>(part.vote));
    }
    // After ddp_publish views are zero.
    if (index > 0 && !sharded(c_.steps[index - 1]))
        compare_all(moments_[index - 1].after, "at the beginning");
    reduced_.assign(c_.params.size(), 0);
    backward(part, moment.written);
    if (part.async) {
        context_.finalize_async();
        wait_for_some(index, part);
    }
    context_.finalize();
    if (c_.callback) check_reduced(step);
    if (c_.votes()) check_votes(index);
    if (!c_.in_step || step.no_sync) compare_all(moment.after, "at the end", sharded(step));
    synced_before_ = synced_before_ || !step.no_sync;
    for (int id = 0; id < c_.param_count() && synced_before_; ++id)
        if (context_.used(id) != moment.used[index_of(id)])
            differ(name_of(id) + (context_.used(id) ? " is used" : " is not used"));
    if (sharded(step)) publish();
}

// A synced step counts what ranks have cast since the one before.
void RankRun::check_votes(std::size_t index) {
    unsigned any = 0, all = ~0u, level = 0;
    for (int rank = 0; rank < c_.world && !c_.steps[index].no_sync; ++rank) {
        unsigned bits = 0;
        for (std::size_t s = index + 1; s-- > 0 && (s == index || c_.steps[s].no_sync);) {
            if (!c_.has_inputs(rank, s)) continue;
            const unsigned vote = c_.steps[s].parts[index_of(rank)].vote;
            bits |= vote;
            level = std::max(level, vote);
        }
        any |= bits;
        if (c_.has_inputs(rank, index)) all &= bits;
    }
    if (c_.steps[index].no_sync) all = 0;
    const auto votes = context_.votes();
    if (votes.any != any * DDP_VOTE_USER || votes.all != all * DDP_VOTE_USER ||
        votes.level != static_cast<std::int32_t>(level))
        differ("the votes are " + std::to_string(votes.any) + ", " + std::to_string(votes.all) +
               " and " + std::to_string(votes.level) + ", not " + std::to_string(any) + ", " +
               std::to_string(all) + " and " + std::to_string(level));
}

void RankRun::publish() {
    if (!c_.in_step) {
        for (const ddp_piece& piece : context_.pieces()) give(piece, step_);
        context_.publish();
    }
    for (int i = 0; i < c_.param_count(); ++i) {
        const int id = (i + rank_) % c_.param_count();
        context_.wait_value(id);
        check_value(id, step_);
        const auto bytes =
            index_of(c_.params[index_of(id)].count) * ddp_dtype_size(c_.params[index_of(id)].dtype);
        // In the step a bucket that nobody uses is left alone.
        const bool gone = c_.in_step && has(c_.steps[step_].gone(), id);
        if (!own_[index_of(id)] && !gone &&
            std::any_of(memory(id), memory(id) + bytes,
                        [](std::byte b) { return b != std::byte{0}; }))
            differ(name_of(id) + ": its view is not zero although its value has come");
    }
}

void RankRun::give(const ddp_piece& piece, std::size_t step) {
    auto& all = values_[index_of(piece.param)];
    const auto count = index_of(c_.params[index_of(piece.param)].count);
    const std::size_t size = all.size() / count;
    const auto first = static_cast<std::size_t>(piece.first) * size;
    if (piece.value != all.data() + first) differ(name_of(piece.param) + ": ddp_piece.value");
    for (std::size_t i = first; i < first + static_cast<std::size_t>(piece.count) * size; ++i)
        all[i] = value_of(piece.param, step, i);
}

void RankRun::update(const ddp_piece& piece) {
    const auto id = index_of(piece.param);
    if (updated_[id] == updates_[id].size())
        return differ(name_of(piece.param) + ": one update more than there are steps");
    const std::size_t step = updates_[id][updated_[id]++];
    const ddp_dtype dtype = c_.params[id].dtype;
    const auto mean = bytes_of(moments_[step].after[index_of(rank_)][id], dtype);
    const std::size_t size = ddp_dtype_size(dtype);
    const auto* const found = static_cast<const std::byte*>(piece.gradient);
    if (!std::equal(found, found + static_cast<std::size_t>(piece.count) * size,
                    mean.begin() + piece.first * static_cast<std::int64_t>(size)))
        differ(name_of(piece.param) + ": the update of step " + std::to_string(step) +
               " got another mean");
    give(piece, step);
}

// in_step: frozen and skipped parameters keep the value that they had.
void RankRun::check_value(int id, std::size_t step) {
    const auto& all = values_[index_of(id)];
    std::optional<std::size_t> since = step;
    if (c_.in_step) {
        const auto& updates = updates_[index_of(id)];
        const auto after = std::upper_bound(updates.begin(), updates.end(), step);
        since = after == updates.begin() ? std::nullopt : std::optional(*std::prev(after));
    }
    for (std::size_t k = 0; k < all.size(); ++k)
        if (all[k] != (since ? value_of(id, *since, k) : std::byte{0})) {
            differ(name_of(id) + ": byte " + std::to_string(k) + " of the value is " +
                   hex(&all[k], 1) + " after step " + std::to_string(step));
            break;
        }
}

// The list of a rank that is not the authority must not count.
void RankRun::freeze_and_skip(const Step& step) {
    if (const auto thawed = ids_of(frozen_ & ~step.frozen); !thawed.empty())
        context_.set_frozen(thawed, false);
    if (const auto added = ids_of(step.frozen & ~frozen_); !added.empty())
        context_.set_frozen(added, true);
    frozen_ = step.frozen;
    const bool decides = step.authority < 0 || step.authority == rank_;
    if (step.authority >= 0 || step.skipped)
        context_.skip(ids_of(decides ? step.skipped : c_.all() & ~step.skipped), step.authority);
    for (int id = 0; id < c_.param_count(); ++id)
        if (context_.skipped(id) != has(step.skipped, id)) differ(name_of(id) + ": ddp_skipped");
}

// A gradient that several layers share is complete only before its last announcement. A gradient
// that does not come is written first, as nobody may touch it once the step has begun.
void RankRun::backward(const Part& part, const Gradients& written) {
    const std::vector<int> order = announcements(part);
    std::vector<int> left(c_.params.size());
    for (int id : order) ++left[index_of(id)];
    for (int id = 0; id < c_.param_count(); ++id)
        if (!has(part.comes, id)) write(id, written);
    for (int id : order) {
        if (!has(part.comes, id)) {
            context_.mark_unused({id});
            continue;
        }
        if (--left[index_of(id)] == 0) write(id, written);
        context_.grad_ready(id);
    }
}

// A parameter for each call. One that does not come is marked as unused.
std::vector<int> RankRun::announcements(const Part& part) const {
    std::vector<int> order;
    for (int id = c_.param_count() - 1; id >= 0; --id) {
        const int calls = has(part.once, id) ? 1 : c_.params[index_of(id)].uses;
        if (has(part.comes, id)) order.insert(order.end(), index_of(calls), id);
        if (has(part.marked, id)) order.push_back(id);
    }
    std::mt19937 random(part.order);
    if (part.order) std::shuffle(order.begin(), order.end(), random);
    return order;
}

void RankRun::reduced(int id, bool used) {
    ++reduced_[index_of(id)];
    compare(id, moments_[step_].after, "in the reduced callback", c_.shard);
    if (used != moments_[step_].used[index_of(id)])
        differ(name_of(id) + ": `used` of the reduced callback");
}

void RankRun::check_reduced(const Step& step) {
    for (int id = 0; id < c_.param_count(); ++id)
        if (reduced_[index_of(id)] != (step.no_sync ? 0 : 1))
            differ(name_of(id) + ": the reduced callback came " +
                   std::to_string(reduced_[index_of(id)]) + " times");
}

void RankRun::wait_for_some(std::size_t index, const Part& part) {
    std::vector<int> order;
    for (int id = 0; id < c_.param_count(); ++id) order.push_back(id);
    std::mt19937 random(part.order);
    if (part.order) std::shuffle(order.begin(), order.end(), random);
    order.resize(part.order % (order.size() + 1));
    for (int id : order) {
        context_.wait(id);
        if (!c_.in_step || c_.steps[index].no_sync)
            compare(id, moments_[index].after, "after ddp_wait_param", sharded(c_.steps[index]));
    }
}

std::byte* RankRun::memory(int id) {
    std::byte* const own = own_[index_of(id)];
    return own ? own : context_.grad_view<std::byte>(id);
}

void RankRun::write(int id, const Gradients& gradients) {
    const auto bytes =
        bytes_of(gradients[index_of(rank_)][index_of(id)], c_.params[index_of(id)].dtype);
    std::copy(bytes.begin(), bytes.end(), memory(id));
}

void RankRun::compare(int id, const Gradients& gradients, const char* when, bool owned) {
    const ddp_dtype dtype = c_.params[index_of(id)].dtype;
    const auto expected = bytes_of(gradients[index_of(rank_)][index_of(id)], dtype);
    const std::byte* found = memory(id);
    const std::size_t size = ddp_dtype_size(dtype);
    auto begin = expected.begin(), end = expected.end();
    if (owned) {
        end = begin;
        for (const ddp_piece& piece : context_.pieces()) {
            if (piece.param != id) continue;
            begin += piece.first * static_cast<std::int64_t>(size);
            end = begin + piece.count * static_cast<std::int64_t>(size);
            if (piece.gradient != found + (begin - expected.begin()))
                differ(name_of(id) + ": ddp_piece.gradient");
        }
    }
    const auto differs = std::mismatch(begin, end, found + (begin - expected.begin())).first;
    if (differs == end) return;
    const auto at = differs - expected.begin();
    const std::size_t element = static_cast<std::size_t>(at) / size;
    differ(name_of(id) + "[" + std::to_string(element) + "] has the bytes " +
           hex(found + element * size, size) + " instead of " +
           hex(&expected[element * size], size) + " " + when);
}

void RankRun::compare_all(const Gradients& gradients, const char* when, bool owned) {
    for (int id = 0; id < c_.param_count(); ++id) compare(id, gradients, when, owned);
}

void RankRun::differ(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (difference_.empty())
        difference_ = std::string("rank ") + std::to_string(rank_) + ", step " +
                      std::to_string(step_) + ": " + what;
}

}  // namespace property
