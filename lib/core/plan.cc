#include "core/plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "comm/group.h"
#include "device/memory.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/hash.h"

namespace libddp {
namespace {

constexpr std::size_t kSmallFirstCap = std::size_t{1} << 20;

using Key = std::tuple<BucketClass, ddp_dtype, ddp_device_kind, std::int32_t>;

// A bucket that is still being filled, and what orders it among the others.
struct Open {
    PlanBucket bucket;
    BucketClass bucket_class = BucketClass::kNormal;
    std::size_t last = 0;  // position in the order of its last gradient
};

void append(PlanBucket& bucket, std::int32_t param, const PlanParam& p) {
    bucket.dtype = p.dtype;
    bucket.device = p.device;
    bucket.alone = p.alone;
    bucket.sparse = p.sparse;
    bucket.in_place = p.in_place;
    bucket.params.push_back(param);
    bucket.offsets.push_back(bucket.bytes);
    if (p.sparse) return;
    bucket.bytes += p.in_place ? p.bytes : align_up(p.bytes);
    bucket.content += p.bytes;
}

Key key_of(const PlanParam& p) {
    return {p.bucket_class, p.dtype, p.device.kind, p.device.index};
}

// Cuts the memory of the gradients that are reduced in place into buckets, each range from its end.
class Ranges {
public:
    Ranges(const std::vector<PlanParam>& params, const std::vector<std::int32_t>& order,
           const std::vector<std::size_t>& caps)
        : params_(params), caps_(caps), position_(params.size(), -1), next_(params.size(), -1) {
        for (std::size_t i = 0; i < order.size(); ++i)
            if (of(order[i]).in_place) at(position_, order[i]) = static_cast<std::int64_t>(i);
        for (const std::int32_t id : order)
            if (const std::int32_t before = previous(id); before >= 0) at(next_, before) = id;
    }

    void cut(std::vector<Open>& finished) {
        for (auto id = static_cast<std::int32_t>(params_.size()) - 1; id >= 0; --id)
            if (at(position_, id) >= 0 && at(next_, id) < 0) cut_range(id, finished);
    }

private:
    const PlanParam& of(std::int32_t id) const { return params_[static_cast<std::size_t>(id)]; }
    template <class T>
    static T& at(std::vector<T>& values, std::int32_t id) {
        return values[static_cast<std::size_t>(id)];
    }

    // The one before in the same range, -1 if there is none.
    std::int32_t previous(std::int32_t id) {
        const std::int32_t before = of(id).in_place ? of(id).follows : -1;
        return before >= 0 && at(position_, before) >= 0 && key_of(of(before)) == key_of(of(id))
                   ? before
                   : -1;
    }

    void cut_range(std::int32_t last, std::vector<Open>& finished) {
        std::size_t& closed = closed_[key_of(of(last))];
        std::vector<std::int32_t> ids;
        std::size_t content = 0;
        for (std::int32_t id = last; id >= 0; id = previous(id)) {
            ids.push_back(id);
            content += of(id).bytes;
            if (previous(id) >= 0 && content < caps_[std::min(closed, caps_.size() - 1)]) continue;
            finished.push_back(close(ids));
            ids.clear();
            content = 0;
            ++closed;
        }
    }

    Open close(const std::vector<std::int32_t>& backwards) {
        Open open{{}, of(backwards.front()).bucket_class, 0};
        for (auto id = backwards.rbegin(); id != backwards.rend(); ++id) {
            append(open.bucket, *id, of(*id));
            open.last = std::max(open.last, static_cast<std::size_t>(at(position_, *id)));
        }
        return open;
    }

    const std::vector<PlanParam>& params_;
    const std::vector<std::size_t>& caps_;
    std::vector<std::int64_t> position_;  // in the order, by parameter; -1: not in place
    std::vector<std::int32_t> next_;      // in the same range, by parameter
    std::map<Key, std::size_t> closed_;
};

}  // namespace

bool BucketPlan::operator==(const BucketPlan& other) const {
    return std::equal(buckets.begin(), buckets.end(), other.buckets.begin(), other.buckets.end(),
                      [](const PlanBucket& a, const PlanBucket& b) {
                          return a.params == b.params && a.offsets == b.offsets;
                      });
}

std::vector<std::int32_t> reverse_order(std::size_t count) {
    std::vector<std::int32_t> order(count);
    std::iota(order.rbegin(), order.rend(), 0);
    return order;
}

BucketPlan make_plan(const std::vector<PlanParam>& params, const std::vector<std::int32_t>& order,
                     const std::vector<std::size_t>& caps) {
    struct Row {
        Open open;
        std::size_t closed = 0;
    };
    std::map<Key, Row> rows;
    std::vector<Open> finished;
    for (std::size_t position = 0; position < order.size(); ++position) {
        const std::int32_t id = order[position];
        const PlanParam& p = params[static_cast<std::size_t>(id)];
        if (p.in_place) continue;
        if (p.alone) {
            append(finished.emplace_back(Open{{}, p.bucket_class, position}).bucket, id, p);
            continue;
        }
        Row& row = rows[key_of(p)];
        append(row.open.bucket, id, p);
        row.open.bucket_class = p.bucket_class;
        row.open.last = position;
        if (row.open.bucket.content >= caps[std::min(row.closed, caps.size() - 1)]) {
            finished.push_back(std::move(row.open));
            row.open = {};
            ++row.closed;
        }
    }
    for (auto& [_, row] : rows)
        if (!row.open.bucket.params.empty()) finished.push_back(std::move(row.open));
    Ranges(params, order, caps).cut(finished);

    std::sort(finished.begin(), finished.end(), [](const Open& a, const Open& b) {
        return std::tie(a.bucket_class, a.last) < std::tie(b.bucket_class, b.last);
    });
    BucketPlan plan;
    for (auto& open : finished) plan.buckets.push_back(std::move(open.bucket));
    return plan;
}

void keep_orders(BucketPlan& plan, const BucketPlan& before) {
    std::map<std::int32_t, const PlanBucket*> old;
    for (const PlanBucket& bucket : before.buckets)
        for (const std::int32_t id : bucket.params) old[id] = &bucket;
    for (PlanBucket& bucket : plan.buckets) {
        const PlanBucket* const same = old[bucket.params.front()];
        if (same && same->params.size() == bucket.params.size() &&
            std::all_of(bucket.params.begin(), bucket.params.end(),
                        [&](std::int32_t id) { return old[id] == same; }))
            bucket = *same;
    }
}

std::vector<std::size_t> make_caps(std::size_t first, std::size_t cap) {
    return {first != 0 ? first : std::min(kSmallFirstCap, cap), cap};
}

BucketPlan lay_out(const std::vector<PlanParam>& params,
                   const std::vector<std::vector<std::int32_t>>& buckets) {
    BucketPlan plan;
    for (const auto& ids : buckets) {
        PlanBucket& bucket = plan.buckets.emplace_back();
        for (std::int32_t id : ids) append(bucket, id, params[static_cast<std::size_t>(id)]);
    }
    return plan;
}

std::uint64_t hash_plan(const BucketPlan& plan) {
    Hash hash;
    hash.add(plan.buckets.size());
    for (const auto& bucket : plan.buckets) {
        hash.add(static_cast<std::uint64_t>(bucket.dtype))
            .add(bucket.bytes)
            .add(bucket.params.size());
        for (std::size_t i = 0; i < bucket.params.size(); ++i)
            hash.add(static_cast<std::uint64_t>(bucket.params[i])).add(bucket.offsets[i]);
        for (const BucketSection& section : bucket.sections) {
            hash.add(section.begin).add(section.count);
            if (!section.counts) continue;
            for (const std::uint64_t count : *section.counts) hash.add(count);
        }
    }
    return hash.value() ? hash.value() : 1;
}

namespace {

using Json = nlohmann::json;

constexpr int kPlanVersion = 1;
constexpr std::size_t kQuotedBytes = 80;

// The beginning of any text, in quotation marks, as UTF-8.
std::string quoted(const std::string& text) {
    const Json begin = text.substr(0, kQuotedBytes);
    return begin.dump(-1, ' ', false, Json::error_handler_t::replace) +
           (text.size() > kQuotedBytes ? "..." : "");
}

// A value that stands where another was expected. Lists and objects are only named: they may be
// nested without end.
std::string describe(const Json& value) {
    if (value.is_array()) return value.empty() ? "an empty list" : "a list";
    if (value.is_object()) return "an object";
    return value.is_string() ? quoted(value.get_ref<const std::string&>()) : value.dump();
}

[[noreturn]] void refuse(std::int32_t param, std::string why) {
    throw CallError({DDP_ERROR_INVALID_ARGUMENT, std::move(why), -1, param});
}

// A bucket holds one dtype on one device, a sparse or factored parameter is alone, and what is
// reduced in place is one range.
void check_bucket(const std::vector<std::int32_t>& bucket, std::size_t index,
                  const ParamTable& table) {
    const Param& first = table[bucket.front()];
    for (std::size_t i = 0; i < bucket.size(); ++i) {
        const std::int32_t id = bucket[i];
        const Param& p = table[id];
        if (i > 0 && (p.in_place.memory || first.in_place.memory) &&
            p.in_place.follows != bucket[i - 1])
            refuse(
                id,
                str("bucket ", index, " of the plan holds '", table[bucket[i - 1]].name, "' and '",
                    p.name,
                    "'; a bucket that is reduced in place holds gradients that follow each other "
                    "in memory, on every rank and in this order"));
        if (p.gradient.dtype != first.gradient.dtype || p.device.kind != first.device.kind ||
            p.device.index != first.device.index)
            refuse(id, str("bucket ", index, " of the plan holds '", first.name, "' (",
                           dtype_name(first.gradient.dtype), ") and '", p.name, "' (",
                           dtype_name(p.gradient.dtype), "); a bucket has one dtype and device"));
        if (p.alone() && bucket.size() > 1)
            refuse(id, str("bucket ", index, " of the plan holds the ",
                           p.sparse ? "sparse" : "factored", " parameter '", p.name,
                           "' and others; it must be alone"));
    }
}

// Every parameter that is reduced is in one of them.
void check_plan(const std::vector<std::vector<std::int32_t>>& buckets, const ParamTable& table) {
    std::vector<bool> seen(table.params().size());
    for (std::size_t b = 0; b < buckets.size(); ++b) {
        for (const std::int32_t id : buckets[b]) {
            if (seen[static_cast<std::size_t>(id)])
                refuse(id, str("the plan names '", table[id].name, "' twice"));
            seen[static_cast<std::size_t>(id)] = true;
        }
        check_bucket(buckets[b], b, table);
    }
    for (std::int32_t id = 0; id < table.size(); ++id)
        if (!seen[static_cast<std::size_t>(id)] && !table[id].ignored)
            refuse(id, str("the plan does not name '", table[id].name, "'"));
}

constexpr std::int32_t kEndOfBucket = -1;

}  // namespace

std::string plan_to_text(const BucketPlan& plan, const ParamTable& table) {
    Json buckets = Json::array();
    for (const auto& bucket : plan.buckets) {
        Json names = Json::array();
        for (std::int32_t id : bucket.params) names.push_back(table[id].name);
        buckets.push_back(std::move(names));
    }
    try {
        return Json{{"libddp_plan", kPlanVersion}, {"buckets", std::move(buckets)}}.dump(1);
    } catch (const Json::type_error&) {
        fail_call(DDP_ERROR_UNSUPPORTED, "the name of a parameter is not UTF-8, which JSON needs");
    }
}

std::vector<std::vector<std::int32_t>> plan_from_text(const std::string& text,
                                                      const ParamTable& table) {
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded())
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "text is no plan, it is not JSON: ", quoted(text));
    if (!json.is_object() || !json.contains("libddp_plan") || !json.contains("buckets") ||
        !json["buckets"].is_array())
        fail_call(DDP_ERROR_INVALID_ARGUMENT,
                  "text is no plan; it must be an object with \"libddp_plan\" and a list "
                  "\"buckets\", as ddp_plan_save makes it");
    if (json["libddp_plan"] != kPlanVersion)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the plan has version ",
                  describe(json["libddp_plan"]), "; this library reads version ", kPlanVersion);
    std::vector<std::vector<std::int32_t>> buckets;
    for (const Json& names : json["buckets"]) {
        if (!names.is_array() || names.empty())
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "bucket ", buckets.size(), " of the plan is ",
                      describe(names), "; it must be a list of names");
        auto& bucket = buckets.emplace_back();
        for (const Json& name : names) {
            const std::int32_t id = name.is_string() ? table.find(name.get<std::string>()) : -1;
            if (id < 0 || table[id].ignored)
                fail_call(DDP_ERROR_INVALID_ARGUMENT, "the plan names ", describe(name),
                          ", which is no parameter of this context",
                          id < 0 ? "" : " that is reduced");
            bucket.push_back(id);
        }
    }
    check_plan(buckets, table);
    return buckets;
}

std::vector<std::vector<std::int32_t>> plan_of_rank_0(Group& group, const OpTag& of,
                                                      const BucketPlan& mine,
                                                      const ParamTable& table) {
    std::vector<std::int32_t> ids;
    for (const PlanBucket& bucket : mine.buckets) {
        ids.insert(ids.end(), bucket.params.begin(), bucket.params.end());
        ids.push_back(kEndOfBucket);
    }
    ids.resize(2 * table.params().size(), kEndOfBucket);  // as many on every rank
    group.run({DDP_COLLECTIVE_BROADCAST, nullptr, ids.data(), ids.size(), DDP_I32},
              of.with(Purpose::kPlan));
    std::vector<std::vector<std::int32_t>> buckets(1);
    for (const std::int32_t id : ids) {
        if (id < kEndOfBucket || id >= table.size() || (id >= 0 && table[id].ignored))
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "the plan of rank 0 has a parameter ", id,
                      "; its memory is damaged");
        if (id != kEndOfBucket)
            buckets.back().push_back(id);
        else if (!buckets.back().empty())
            buckets.emplace_back();
    }
    buckets.pop_back();
    check_plan(buckets, table);
    return buckets;
}

ReadyOrder::ReadyOrder(std::vector<std::int32_t> initial)
    : agreed_(std::move(initial)), heard_(agreed_.size()) {}

void ReadyOrder::start() {
    count_.store(0, std::memory_order_relaxed);
    recording_ = true;
}

void ReadyOrder::finish() {
    recording_ = false;
    own_.assign(heard_.begin(), heard_.begin() + count_.load(std::memory_order_relaxed));
    std::vector<std::int32_t> sorted = own_;
    std::sort(sorted.begin(), sorted.end());
    for (auto id : agreed_)
        if (!std::binary_search(sorted.begin(), sorted.end(), id)) own_.push_back(id);
}

namespace {

// Whether both name the same parameters, each as often.
bool same_parameters(std::vector<std::int32_t> one, std::vector<std::int32_t> other) {
    std::sort(one.begin(), one.end());
    std::sort(other.begin(), other.end());
    return one == other;
}

}  // namespace

void ReadyOrder::agree(Group& group, const OpTag& of, std::int32_t root, bool consensus) {
    // A rank that has recorded nothing (it joined a running job) says what it knows.
    const OpTag tag = of.with(Purpose::kReadyOrder);
    std::vector<std::int32_t> order = own_.empty() ? agreed_ : own_;
    if (!consensus) {
        group.run(
            {DDP_COLLECTIVE_BROADCAST, nullptr, order.data(), order.size(), DDP_I32, DDP_SUM, root},
            tag);
        if (!same_parameters(order, agreed_))
            throw Error(group.break_everywhere(
                {DDP_ERROR_MISMATCH,
                 str("rank ", root, " sent an order of other parameters than rank ", group.rank(),
                     " has"),
                 root}));
        agreed_ = std::move(order);
        return;
    }
    std::int32_t largest = -1;
    for (auto id : order) largest = std::max(largest, id);
    std::vector<std::int64_t> places(static_cast<std::size_t>(largest + 1));
    for (std::size_t place = 0; place < order.size(); ++place)
        places[static_cast<std::size_t>(order[place])] = static_cast<std::int64_t>(place);
    group.run({DDP_COLLECTIVE_ALLREDUCE, nullptr, places.data(), places.size(), DDP_I64, DDP_SUM},
              tag);
    std::sort(order.begin(), order.end());
    std::stable_sort(order.begin(), order.end(), [&places](std::int32_t a, std::int32_t b) {
        return places[static_cast<std::size_t>(a)] < places[static_cast<std::size_t>(b)];
    });
    agreed_ = std::move(order);
}

}  // namespace libddp
