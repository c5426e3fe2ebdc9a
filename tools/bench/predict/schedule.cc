#include "predict/schedule.h"

#include <ddp/ddp.h>
#include <malloc.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "gradients.h"
#include "handles.h"
#include "record/recorder.h"
#include "why/reader.h"

namespace bench {
namespace {

using libddp::record::Event;
using libddp::record::EventKind;
using libddp::record::now_ns;

constexpr int kStepsAlone = 3;  // libddp plans the buckets again after the first one
// of all steps, also with the hook that has most collectives
constexpr std::size_t kEventsOfBucket = 50;

// A folder that goes with the object.
class Folder {
public:
    Folder() : path_((std::filesystem::temp_directory_path() / "ddp-bench-XXXXXX").string()) {
        if (!mkdtemp(path_.data()))
            throw std::runtime_error("cannot make a folder " + path_ + " for a record");
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// Lets the next run take the memory of this one. New pages would cost most of its time.
void keep_memory() {
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
}

Group alone(const Settings& settings) {
    ddp_group_options join;
    ddp_group_options_init(&join);
    join.rank = 0;
    join.world_size = 1;
    join.round_robin = settings.groups;
    ddp_group* group = nullptr;
    Result result;
    result.check(ddp_group_create(&join, &group, result));
    return Group(group);
}

std::string plan_of(ddp_context* context) {
    char* text = nullptr;
    Result result;
    result.check(ddp_plan_save(context, &text, result));
    const std::unique_ptr<char, decltype(&ddp_free)> owner(text, ddp_free);
    return text;
}

// The bucket of each parameter.
std::vector<int> buckets_of(const std::string& plan, const Model& model) {
    const auto json = nlohmann::json::parse(plan);
    std::map<std::string, int> found;
    int bucket = 0;
    for (const auto& names : json.at("buckets")) {
        for (const auto& name : names) found[name.get<std::string>()] = bucket;
        ++bucket;
    }
    std::vector<int> buckets;
    for (const Parameter& parameter : model) buckets.push_back(found.at(parameter.name));
    return buckets;
}

struct Steps {
    std::vector<std::int64_t>
        // when each gradient of the last one was announced, in the order of the backward pass
        times;
    std::string plan;
};

Steps run_steps(ddp_group* group, const Model& model, const Settings& settings) {
    SharedGradients gradients(group, context_options(settings), model, nullptr);
    if (!settings.hook.empty()) {
        Result result;
        result.check(ddp_use_hook(gradients.context(), settings.hook.c_str(),
                                  settings.hook_options.c_str(), result));
    }
    Steps steps;
    for (int step = 0; step < kStepsAlone; ++step) {
        steps.times.clear();
        gradients.begin_step();
        for (std::size_t i = gradients.all().size(); i-- > 0;) {
            steps.times.push_back(now_ns());
            gradients.ready(i);
        }
        gradients.finalize();
    }
    steps.plan = plan_of(gradients.context());
    return steps;
}

// events: of one context alone.
Schedule schedule_of(const std::vector<Event>& events, const std::vector<std::int64_t>& times) {
    std::int64_t last_step = -1;
    for (const Event& event : events)
        if (event.kind == EventKind::kLaunch) last_step = std::max(last_step, event.step);
    std::map<std::int32_t, int> triggers;  // of buckets
    std::map<std::uint16_t, int> links;
    std::map<std::int32_t, int> newest;  // collective of a bucket
    std::vector<Event> operations;
    for (const Event& event : events) {
        if (event.kind == EventKind::kOperationEnd) links.emplace(event.owner, 0);
        if (event.step != last_step) continue;
        if (event.kind == EventKind::kLaunch) {
            const auto next = std::upper_bound(times.begin(), times.end(), event.time_ns);
            triggers[event.bucket] = static_cast<int>(next - times.begin()) - 1;
        }
        if (event.kind == EventKind::kOperationEnd && event.bucket >= 0)
            operations.push_back(event);
    }
    int count = 0;
    for (auto& [owner, number] : links) number = count++;
    // Events of several links come as they end; buckets are launched in their order.
    std::stable_sort(operations.begin(), operations.end(),
                     [](const Event& a, const Event& b) { return a.bucket < b.bucket; });
    Schedule schedule;
    schedule.buckets = static_cast<int>(triggers.size());
    std::vector<Collective>& collectives = schedule.collectives;
    for (const Event& event : operations) {
        Collective collective;
        collective.kind = libddp::record::collective_of(event.detail);
        collective.bytes = static_cast<double>(event.bytes);
        collective.bucket = event.bucket;
        collective.link = links.at(event.owner);
        collective.trigger = triggers.at(event.bucket);
        const auto [before, first] =
            newest.emplace(event.bucket, static_cast<int>(collectives.size()));
        if (!first) collective.after = before->second;
        // A rank that is alone owns all shares. Sums that owners hand to all cost as much as what
        // they are the sums of.
        const auto shared = first ? collectives.end() : collectives.begin() + before->second;
        if (!first && shared->kind == DDP_COLLECTIVE_ALL_TO_ALL &&
            collective.kind == DDP_COLLECTIVE_ALLGATHER)
            collective.kind = DDP_COLLECTIVE_REDUCE_SCATTER;
        before->second = static_cast<int>(collectives.size());
        collectives.push_back(collective);
    }
    return schedule;
}

}  // namespace

Schedule in_turn(Schedule schedule, unsigned links) {
    for (Collective& collective : schedule.collectives)
        collective.link = collective.bucket % static_cast<int>(links);
    return schedule;
}

std::string plan_in_order(const std::string& plan, const std::vector<int>& order) {
    auto json = nlohmann::ordered_json::parse(plan);
    const auto before = json.at("buckets");
    std::vector<bool> placed(before.size());
    auto& buckets = json["buckets"] = nlohmann::ordered_json::array();
    const auto place = [&](std::size_t bucket) {
        if (!placed.at(bucket)) buckets.push_back(before.at(bucket));
        placed[bucket] = true;
    };
    for (const int bucket : order) place(static_cast<std::size_t>(bucket));
    for (std::size_t bucket = 0; bucket < before.size(); ++bucket) place(bucket);
    return json.dump(1);
}

Schedule find_schedule(const Model& model, const Settings& settings) {
    if (settings.hook.find("post_local_sgd") != std::string::npos)
        throw std::invalid_argument(
            "--hook: what post_local_sgd sends depends on the number of ranks, which run alone "
            "does not show");
    static const Folder folder;  // libddp asks once in a process where to record
    setenv("DDP_RECORD", folder.path().c_str(), 1);
    const std::size_t events =
        std::max<std::size_t>(libddp::record::kEvents, kEventsOfBucket * model.size());
    setenv("DDP_RECORD_EVENTS", std::to_string(events).c_str(), 1);
    keep_memory();
    const std::int64_t begin = now_ns();
    const Group group = alone(settings);
    const Steps steps = run_steps(group.get(), model, settings);
    std::vector<std::string> complaints;
    for (auto& process : libddp::record::read_records(folder.path(), complaints)) {
        std::vector<Event>& all = process.events;
        // back to the clock of `steps`
        for (Event& event : all) event.time_ns -= process.clock.offset_ns;
        if (process.lost > 0 && all.front().time_ns > begin)
            throw std::runtime_error("the steps do not fit into a record of " +
                                     std::to_string(events) + " events");
        std::erase_if(all, [&](const Event& event) { return event.time_ns < begin; });
        Schedule schedule = schedule_of(all, steps.times);
        schedule.plan = steps.plan;
        schedule.bucket_of = buckets_of(steps.plan, model);
        if (schedule.buckets > 0) return schedule;
    }
    throw std::runtime_error("libddp has recorded no step" +
                             (complaints.empty() ? std::string() : ": " + complaints.front()));
}

}  // namespace bench
