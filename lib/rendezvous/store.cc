#include "rendezvous/store.h"

#include <algorithm>
#include <utility>

#include "rendezvous/store_engine.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

std::string only_value(Outcome outcome) {
    if (outcome.values.size() != 1)
        fail(DDP_ERROR_INTERNAL, "the store answered with ", outcome.values.size(),
             " values instead of one");
    return std::move(outcome.values.front());
}

}  // namespace

Store::Store(std::shared_ptr<StoreEngine> engine, StoreConfig config, std::string description)
    : engine_(std::move(engine)),
      config_(std::move(config)),
      description_(std::move(description)),
      owns_connection_(true),
      within_ms_(0) {}

Store::Store(const Store& owner, std::int64_t within_ms)
    : engine_(owner.engine_),
      config_(owner.config_),
      description_(owner.description_),
      owns_connection_(false),
      within_ms_(within_ms) {}

Store::~Store() {
    if (owns_connection_) engine_->close();
}

Outcome Store::call(Request made) const {
    if (auto failure = invalid(made)) fail(failure->code, failure->message);
    if (may_wait(made.op) && made.timeout_ms != kNoWait) interrupt::refuse_inside_check();
    auto engine = engine_;
    Outcome outcome = engine->perform(std::move(made), within_ms_);
    if (outcome.code != DDP_OK) fail(outcome.code, outcome.message);
    return outcome;
}

std::int64_t Store::resolve(std::int64_t timeout_ms) const {
    if (timeout_ms < 0) return kNoWait;
    return timeout_ms == 0 ? config_.timeout_ms : std::min(timeout_ms, kLongestWaitMs);
}

void Store::set(const std::string& key, std::string_view value) {
    call({Op::kSet, {key}, {std::string(value)}});
}

std::string Store::get(const std::string& key, std::int64_t timeout_ms) {
    return only_value(call({Op::kGet, {key}, {}, 0, resolve(timeout_ms)}));
}

std::string Store::compare_set(const std::string& key, std::string_view expected,
                               std::string_view desired) {
    return only_value(
        call({Op::kCompareSet, {key}, {std::string(expected), std::string(desired)}}));
}

std::int64_t Store::raise_fence(std::int64_t at_least) {
    auto engine = engine_;
    return engine->raise_fence(at_least);
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) {
    return call({Op::kAdd, {key}, {}, amount}).number;
}

bool Store::check(const Keys& keys) {
    return call({Op::kCheck, keys}).number != 0;
}

void Store::wait(const Keys& keys, std::int64_t timeout_ms) {
    call({Op::kWait, keys, {}, 0, resolve(timeout_ms)});
}

bool Store::remove(const std::string& key) {
    return call({Op::kRemove, {key}}).number != 0;
}

Store::Keys Store::list_keys(const std::string& prefix) {
    return call({Op::kListKeys, {}, {prefix}}).values;
}

void Store::set_will(const std::string& key, std::string_view value, const std::string& holder_key,
                     std::string_view holder) {
    Request will{Op::kSetWill, {key}, {std::string(value)}};
    if (!holder_key.empty()) {
        will.keys.push_back(holder_key);
        will.values.emplace_back(holder);
    }
    call(std::move(will));
}

void Store::remove_will(const std::string& key) {
    call({Op::kRemoveWill, {key}});
}

Store::Watch Store::watch(const std::string& key, std::function<void(std::string value)> seen) {
    if (auto failure = invalid({Op::kGet, {key}})) fail(failure->code, failure->message);
    return engine_->watch(
        key, [seen = std::move(seen)](const std::string& value, bool) { seen(value); });
}

void Store::unwatch(Watch watch) {
    auto engine = engine_;
    engine->unwatch(watch);
}

Store::Watch Store::watch_connection(std::function<void(std::string reason, bool graceful)> lost) {
    return engine_->watch_connection(std::move(lost));
}

bool Store::answers(std::int64_t within_ms) {
    auto engine = engine_;
    return engine->answers(within_ms);
}

std::shared_ptr<Store> Store::bounded(std::int64_t within_ms) {
    return std::make_shared<Store>(*this, within_ms);
}

void Store::close() {
    auto engine = engine_;
    engine->close();
}

int Store::port() const {
    return engine_->port();
}

std::int64_t Store::notices_death_ms() const {
    return engine_->notices_death_ms();
}

std::int64_t Store::alive_until_ms() const {
    return engine_->alive_until_ms();
}

}  // namespace libddp
