#include "core/plan_text.h"

#include <nlohmann/json.hpp>

#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kQuotedBytes = 80;

// The beginning of any text, in quotation marks, as UTF-8.
std::string quoted(const std::string& text) {
    const Json begin = text.substr(0, kQuotedBytes);
    return begin.dump(-1, ' ', false, Json::error_handler_t::replace) + (text.size() > kQuotedBytes ? "..." : "");
}

// A value that stands where another was expected. Lists and objects are only named: they may be nested without end.
std::string describe(const Json& value) {
    if (value.is_array()) return value.empty() ? "an empty list" : "a list";
    if (value.is_object()) return "an object";
    return value.is_string() ? quoted(value.get_ref<const std::string&>()) : value.dump();
}

// A bucket holds one dtype on one device, and a sparse or factored parameter is alone.
void check_bucket(const std::vector<std::int32_t>& bucket, std::size_t index, const ParamTable& table,
                  const char* call) {
    const Param& first = table[bucket.front()];
    for (std::int32_t id : bucket) {
        const Param& p = table[id];
        if (p.dtype != first.dtype || p.device.kind != first.device.kind || p.device.index != first.device.index)
            fail(DDP_ERROR_INVALID_ARGUMENT, call, ": bucket ", index, " of the plan holds '", first.name, "' (",
                 dtype_name(first.dtype), ") and '", p.name, "' (", dtype_name(p.dtype),
                 "); a bucket has one dtype and device");
        if (p.alone() && bucket.size() > 1)
            fail(DDP_ERROR_INVALID_ARGUMENT, call, ": bucket ", index, " of the plan holds the ",
                 p.sparse ? "sparse" : "factored", " parameter '", p.name, "' and others; it must be alone");
    }
}

}  // namespace

std::string plan_to_text(const BucketPlan& plan, const ParamTable& table) {
    Json buckets = Json::array();
    for (const auto& bucket : plan.buckets) {
        Json names = Json::array();
        for (std::int32_t id : bucket.params) names.push_back(table[id].name);
        buckets.push_back(std::move(names));
    }
    try {
        return Json{{"libddp_plan", kVersion}, {"buckets", std::move(buckets)}}.dump(1);
    } catch (const Json::type_error&) {
        fail(DDP_ERROR_UNSUPPORTED, "ddp_plan_save: the name of a parameter is not UTF-8, which JSON needs");
    }
}

std::vector<std::vector<std::int32_t>> plan_from_text(const std::string& text, const ParamTable& table,
                                                      const char* call) {
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded())
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": text is no plan, it is not JSON: ", quoted(text));
    if (!json.is_object() || !json.contains("libddp_plan") || !json.contains("buckets") || !json["buckets"].is_array())
        fail(DDP_ERROR_INVALID_ARGUMENT, call,
             ": text is no plan; it must be an object with \"libddp_plan\" and a list \"buckets\", as ddp_plan_save "
             "makes it");
    if (json["libddp_plan"] != kVersion)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": the plan has version ", describe(json["libddp_plan"]),
             "; this library reads version ", kVersion);
    std::vector<std::vector<std::int32_t>> buckets;
    std::vector<bool> seen(table.params().size());
    for (const Json& names : json["buckets"]) {
        if (!names.is_array() || names.empty())
            fail(DDP_ERROR_INVALID_ARGUMENT, call, ": bucket ", buckets.size(), " of the plan is ", describe(names),
                 "; it must be a list of names");
        auto& bucket = buckets.emplace_back();
        for (const Json& name : names) {
            const std::int32_t id = name.is_string() ? table.find(name.get<std::string>()) : -1;
            if (id < 0 || table[id].ignored)
                fail(DDP_ERROR_INVALID_ARGUMENT, call, ": the plan names ", describe(name),
                     ", which is no parameter of this context", id < 0 ? "" : " that is reduced");
            if (seen[static_cast<std::size_t>(id)])
                fail(DDP_ERROR_INVALID_ARGUMENT, call, ": the plan names '", table[id].name, "' twice");
            seen[static_cast<std::size_t>(id)] = true;
            bucket.push_back(id);
        }
        check_bucket(bucket, buckets.size() - 1, table, call);
    }
    for (std::int32_t id = 0; id < table.size(); ++id)
        if (!seen[static_cast<std::size_t>(id)] && !table[id].ignored)
            fail(DDP_ERROR_INVALID_ARGUMENT, call, ": the plan does not name '", table[id].name, "'");
    return buckets;
}

}  // namespace libddp
