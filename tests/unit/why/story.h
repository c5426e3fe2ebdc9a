// Records made by hand: what processes would have written, event by event.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/backend.h"
#include "why/position.h"
#include "why/process_record.h"

namespace libddp::record {

inline constexpr std::int64_t kMs = 1'000'000;
inline constexpr std::uint16_t kGroupOwner = 1, kContextOwner = 2;

// One rank's process, which has ended: its pid is none. Times are milliseconds.
class Story {
public:
    Story(std::int32_t rank, std::int32_t world) {
        record_.identity.host = "no-such-host-" + std::to_string(rank);
        record_.identity.host_id = "boot net";
        record_.identity.pid = 1000 + rank;
        record_.identity.launch_rank = rank;
        GroupRecord group;
        group.owner = kGroupOwner;
        group.rank = rank;
        group.world = world;
        group.name = "world";
        group.key = "key";
        group.backend = "tcp";
        record_.groups.push_back(group);
        ContextRecord context;
        context.owner = kContextOwner;
        context.group = kGroupOwner;
        context.params =
            std::make_shared<std::vector<std::string>>(std::vector<std::string>{"a", "b", "c"});
        context.announced = {0, 0, 0};
        context.buckets = {{2, 1}, {0}};
        record_.contexts.push_back(context);
        add(kGroupOwner, event(EventKind::kJoined), 0);
    }

    Story& begin_step(std::int64_t step, double at) {
        return of_context(EventKind::kStepBegin, step, at);
    }
    Story& end_backward(std::int64_t step, double at) {
        return of_context(EventKind::kBackwardEnd, step, at);
    }
    Story& end_step(std::int64_t step, double at) {
        return of_context(EventKind::kStepEnd, step, at);
    }
    Story& launch(std::int64_t step, std::int32_t bucket, double at) {
        add(kContextOwner, event(EventKind::kLaunch, step, bucket), at);
        return add(kContextOwner, event(EventKind::kHookBegin, step, bucket), at);
    }
    Story& end_hook(std::int64_t step, std::int32_t bucket, double since, double at) {
        Event hook = event(EventKind::kHookEnd, step, bucket);
        hook.since_ns = ns(since);
        return add(kContextOwner, hook, at);
    }
    Story& begin(std::int64_t sequence, double at, std::int64_t step = -1, std::int32_t bucket = -1,
                 std::uint64_t bytes = 100, std::int32_t kind = DDP_COLLECTIVE_ALLREDUCE) {
        return operation(EventKind::kOperationBegin, sequence, at, at, step, bucket, bytes, kind);
    }
    Story& end(std::int64_t sequence, double since, double at, std::int64_t step = -1,
               std::int32_t bucket = -1, std::uint64_t bytes = 100) {
        return operation(EventKind::kOperationEnd, sequence, since, at, step, bucket, bytes,
                         DDP_COLLECTIVE_ALLREDUCE);
    }
    Story& leave(double at) {
        record_.groups[0].totals.left_ns = ns(at);
        return add(kGroupOwner, event(EventKind::kLeft), at);
    }
    // A group of this number, made then.
    Story& key(int number, double at) {
        record_.groups[0].key = "key " + std::to_string(number);
        record_.groups[0].created_ns = ns(at);
        return *this;
    }
    // The process began then, by the system's clock.
    Story& opened(double at) {
        record_.opened_realtime_ns = ns(at);
        return *this;
    }
    Story& announce(std::int32_t param, std::int64_t step) {
        record_.contexts[0].announced[static_cast<std::size_t>(param)] =
            static_cast<AnnouncedStep>(step + 1);
        return *this;
    }
    Story& broken(double at, Verdict verdict) {
        record_.groups[0].verdicts.push_back(std::move(verdict));
        return add(kGroupOwner, event(EventKind::kBroken), at);
    }
    Story& exit(double at, std::int32_t status) {
        Event exit = event(EventKind::kExit);
        exit.detail = status;
        return add(0, exit, at);
    }
    Story& stand_still(double since, double at) {
        Event stood = event(EventKind::kStoodStill);
        stood.since_ns = ns(since);
        return add(0, stood, at);
    }
    Story& fail(double at, Verdict error) {
        record_.failure = Failure{std::move(error), ns(at)};
        return *this;
    }
    Story& alive(double at) {
        record_.alive_ns = ns(at);
        return *this;
    }
    Story& peer(const Peer& peer) {
        record_.groups[0].peers.push_back(peer);
        return *this;
    }

    ProcessRecord& record() { return record_; }

private:
    static Event event(EventKind kind, std::int64_t step = -1, std::int32_t bucket = -1) {
        Event event{};
        event.kind = kind;
        event.step = step;
        event.bucket = bucket;
        return event;
    }
    static std::int64_t ns(double ms) { return static_cast<std::int64_t>(ms * kMs); }
    Story& of_context(EventKind kind, std::int64_t step, double at) {
        return add(kContextOwner, event(kind, step), at);
    }
    Story& operation(EventKind what, std::int64_t sequence, double since, double at,
                     std::int64_t step, std::int32_t bucket, std::uint64_t bytes,
                     std::int32_t kind) {
        Event operation = event(what, step, bucket);
        operation.since_ns = ns(since);
        operation.sequence = sequence;
        operation.bytes = bytes;
        operation.detail = operation_detail(kind, 0);
        return add(kGroupOwner, operation, at);
    }
    Story& add(std::uint16_t owner, Event event, double at) {
        event.number = record_.events.size() + 1;
        event.owner = owner;
        event.time_ns = ns(at);
        record_.events.push_back(event);
        return *this;
    }

    ProcessRecord record_;
};

inline std::vector<ProcessRecord> records_of(std::vector<Story>& stories) {
    std::vector<ProcessRecord> records;
    for (Story& story : stories) records.push_back(story.record());
    return records;
}

inline std::vector<Story> stories(std::int32_t world) {
    std::vector<Story> all;
    for (std::int32_t rank = 0; rank < world; ++rank) all.emplace_back(rank, world);
    return all;
}

}  // namespace libddp::record
