#include "rendezvous/store_engine.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "util/deadline.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/printable.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

std::string only_value(Outcome outcome) {
    if (outcome.values.size() != 1)
        fail(DDP_ERROR_INTERNAL, "the store answered with ", outcome.values.size(), " values instead of one");
    return std::move(outcome.values.front());
}

}  // namespace

void prepare_stores() {
    wire::prepare_cryptography();
}

EngineStore::EngineStore(std::shared_ptr<StoreEngine> engine, StoreConfig config, std::string description)
    : engine_(std::move(engine)),
      config_(std::move(config)),
      description_(std::move(description)),
      owns_connection_(true),
      within_ms_(0) {}

EngineStore::EngineStore(const EngineStore& owner, std::int64_t within_ms)
    : engine_(owner.engine_),
      config_(owner.config_),
      description_(owner.description_),
      owns_connection_(false),
      within_ms_(within_ms) {}

EngineStore::~EngineStore() {
    if (owns_connection_) engine_->close();
}

Outcome EngineStore::call(Request made) const {
    if (auto failure = invalid(made)) fail(failure->code, failure->message);
    if (may_wait(made.op) && made.timeout_ms != kNoWait) interrupt::refuse_inside_check();
    auto engine = engine_;
    Outcome outcome = engine->perform(std::move(made), within_ms_);
    if (outcome.code != DDP_OK) fail(outcome.code, outcome.message);
    return outcome;
}

std::int64_t EngineStore::resolve(std::int64_t timeout_ms) const {
    if (timeout_ms < 0) return kNoWait;
    return timeout_ms == 0 ? config_.timeout_ms : std::min(timeout_ms, kLongestWaitMs);
}

void EngineStore::set(const std::string& key, std::string_view value) {
    call({Op::kSet, {key}, {std::string(value)}});
}

std::string EngineStore::get(const std::string& key, std::int64_t timeout_ms) {
    return only_value(call({Op::kGet, {key}, {}, 0, resolve(timeout_ms)}));
}

std::string EngineStore::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
    return only_value(call({Op::kCompareSet, {key}, {std::string(expected), std::string(desired)}}));
}

std::int64_t EngineStore::raise_fence(std::int64_t at_least) {
    auto engine = engine_;
    return engine->raise_fence(at_least);
}

std::int64_t EngineStore::add(const std::string& key, std::int64_t amount) {
    return call({Op::kAdd, {key}, {}, amount}).number;
}

bool EngineStore::check(const Keys& keys) {
    return call({Op::kCheck, keys}).number != 0;
}

void EngineStore::wait(const Keys& keys, std::int64_t timeout_ms) {
    call({Op::kWait, keys, {}, 0, resolve(timeout_ms)});
}

bool EngineStore::remove(const std::string& key) {
    return call({Op::kRemove, {key}}).number != 0;
}

Store::Keys EngineStore::list_keys(const std::string& prefix) {
    return call({Op::kListKeys, {}, {prefix}}).values;
}

void EngineStore::set_will(const std::string& key, std::string_view value) {
    call({Op::kSetWill, {key}, {std::string(value)}});
}

void EngineStore::set_will(const std::string& key, std::string_view value, const std::string& holder_key,
                           std::string_view holder) {
    call({Op::kSetWill, {key, holder_key}, {std::string(value), std::string(holder)}});
}

void EngineStore::remove_will(const std::string& key) {
    call({Op::kRemoveWill, {key}});
}

Store::Watch EngineStore::watch(const std::string& key, std::function<void(std::string value)> seen) {
    if (auto failure = invalid({Op::kGet, {key}})) fail(failure->code, failure->message);
    return engine_->watch(key, [seen = std::move(seen)](const std::string& value, bool) { seen(value); });
}

void EngineStore::unwatch(Watch watch) {
    auto engine = engine_;
    engine->unwatch(watch);
}

Store::Watch EngineStore::watch_connection(std::function<void(std::string reason, bool graceful)> lost) {
    return engine_->watch_connection(std::move(lost));
}

bool EngineStore::answers(std::int64_t within_ms) {
    auto engine = engine_;
    return engine->answers(within_ms);
}

std::shared_ptr<Store> EngineStore::reconnect(std::int64_t within_ms) {
    // Mostly the thread of a monitor calls this. It may outlive OpenSSL, which would then leave behind what it keeps for that thread.
    struct Release {
        ~Release() { wire::release_thread_state(); }
    } release;
    return reopen_store(config_, within_ms);
}

std::shared_ptr<Store> EngineStore::bounded(std::int64_t within_ms) {
    return std::make_shared<EngineStore>(*this, within_ms);
}

void EngineStore::close() {
    auto engine = engine_;
    engine->close();
}

int EngineStore::port() const {
    return engine_->port();
}

}  // namespace libddp
