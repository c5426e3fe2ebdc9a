#include "ddp/store.h"

#include <cstdlib>

#include "capi/guard.h"
#include "capi/store_handle.h"

using namespace libddp;

namespace {

std::string_view bytes(const void* value, size_t size, const char* call, const char* name) {
    if (size > 0) require(value, call, name);
    return {static_cast<const char*>(value), size};
}

// A malloc'ed copy with a NUL behind it, so that text values print.
void* give_bytes(const std::string& value) {
    auto* copy = static_cast<char*>(std::malloc(value.size() + 1));
    if (!copy) throw std::bad_alloc();
    std::memcpy(copy, value.c_str(), value.size() + 1);
    return copy;
}

Store::Keys key_list(const char* const* keys, size_t count, const char* call) {
    Store::Keys result;
    if (count > 0) require(keys, call, "keys");
    for (size_t i = 0; i < count; ++i) result.emplace_back(require(keys[i], call, "a key"));
    return result;
}

// A reference of the call's own: another thread may free the handle meanwhile.
std::shared_ptr<Store> store_of(ddp_store* store, const char* call) {
    return require(store, call, "store")->impl;
}

}  // namespace

void ddp_store_options_init(ddp_store_options* options) {
    if (!options) return;
    std::memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
}

ddp_status ddp_store_create(const ddp_store_options* options, ddp_store** store, ddp_error** error) {
    return guard(error, [&] {
        ddp_store_options o;
        ddp_store_options_init(&o);
        read_struct(require(options, "ddp_store_create", "options"), &o, "ddp_store_create", "options");
        require(store, "ddp_store_create", "store");
        require_zero(static_cast<unsigned>(o.reserved0), "ddp_store_create", "options->reserved0");
        if (o.timeout_ms < 0)
            fail(DDP_ERROR_INVALID_ARGUMENT, "ddp_store_create: timeout_ms is ", o.timeout_ms,
                 "; it must not be negative");
        StoreConfig config;
        config.uri = require(o.uri, "ddp_store_create", "options->uri");
        config.is_server = o.is_server != 0;
        if (o.timeout_ms > 0) config.timeout_ms = o.timeout_ms;
        const char* from_env = std::getenv("DDP_SECRET");
        config.secret = o.secret ? o.secret : text_or(from_env, "");
        *store = new ddp_store{open_store(config), true};
    });
}

void ddp_store_free(ddp_store* store) {
    if (!store) return;
    guard(nullptr, [&] {
        if (store->owned) store->impl->close();  // wakes calls that still wait in other threads
    });
    delete store;
}

int32_t ddp_store_port(const ddp_store* store) {
    return store ? store->impl->port() : -1;
}

ddp_status ddp_store_set(ddp_store* store, const char* key, const void* value, size_t size, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_set";
        store_of(store, call)->set(require(key, call, "key"), bytes(value, size, call, "value"));
    });
}

ddp_status ddp_store_get(ddp_store* store, const char* key, int64_t timeout_ms, void** value, size_t* size,
                         ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_get";
        require(value, call, "value");
        require(size, call, "size");
        auto found = store_of(store, call)->get(require(key, call, "key"), timeout_ms);
        *value = give_bytes(found);
        *size = found.size();
    });
}

ddp_status ddp_store_compare_set(ddp_store* store, const char* key, const void* expected, size_t expected_size,
                                 const void* desired, size_t desired_size, void** value, size_t* size,
                                 ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_compare_set";
        require(value, call, "value");
        require(size, call, "size");
        auto now = store_of(store, call)
                       ->compare_set(require(key, call, "key"), bytes(expected, expected_size, call, "expected"),
                                     bytes(desired, desired_size, call, "desired"));
        *value = give_bytes(now);
        *size = now.size();
    });
}

ddp_status ddp_store_add(ddp_store* store, const char* key, int64_t amount, int64_t* sum, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_add";
        require(sum, call, "sum");
        *sum = store_of(store, call)->add(require(key, call, "key"), amount);
    });
}

ddp_status ddp_store_append(ddp_store* store, const char* key, const void* value, size_t size, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_append";
        store_of(store, call)->append(require(key, call, "key"), bytes(value, size, call, "value"));
    });
}

ddp_status ddp_store_check(ddp_store* store, const char* const* keys, size_t count, int32_t* exists,
                           ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_check";
        require(exists, call, "exists");
        *exists = store_of(store, call)->check(key_list(keys, count, call)) ? 1 : 0;
    });
}

ddp_status ddp_store_wait(ddp_store* store, const char* const* keys, size_t count, int64_t timeout_ms,
                          ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_wait";
        store_of(store, call)->wait(key_list(keys, count, call), timeout_ms);
    });
}

ddp_status ddp_store_multi_set(ddp_store* store, const char* const* keys, const void* const* values,
                               const size_t* sizes, size_t count, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_multi_set";
        auto names = key_list(keys, count, call);
        Store::Values contents;
        if (count > 0) {
            require(values, call, "values");
            require(sizes, call, "sizes");
        }
        for (size_t i = 0; i < count; ++i) contents.emplace_back(bytes(values[i], sizes[i], call, "a value"));
        store_of(store, call)->multi_set(names, contents);
    });
}

ddp_status ddp_store_multi_get(ddp_store* store, const char* const* keys, size_t count, int64_t timeout_ms,
                               void** values, size_t* sizes, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_multi_get";
        auto names = key_list(keys, count, call);
        if (count > 0) {
            require(values, call, "values");
            require(sizes, call, "sizes");
        }
        auto contents = store_of(store, call)->multi_get(names, timeout_ms);
        // All copies before any output: a failing allocation must not leave half of them behind.
        std::vector<std::unique_ptr<void, decltype(&std::free)>> copies;
        for (const auto& content : contents) copies.emplace_back(give_bytes(content), &std::free);
        for (size_t i = 0; i < count; ++i) {
            values[i] = copies[i].release();
            sizes[i] = contents[i].size();
        }
    });
}

ddp_status ddp_store_delete(ddp_store* store, const char* key, int32_t* deleted, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_delete";
        bool existed = store_of(store, call)->remove(require(key, call, "key"));
        if (deleted) *deleted = existed ? 1 : 0;
    });
}

ddp_status ddp_store_num_keys(ddp_store* store, int64_t* count, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_num_keys";
        require(count, call, "count");
        *count = store_of(store, call)->num_keys();
    });
}

ddp_status ddp_store_list_keys(ddp_store* store, const char* prefix, void** keys, size_t* size, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_list_keys";
        require(keys, call, "keys");
        require(size, call, "size");
        std::string joined;
        for (const auto& key : store_of(store, call)->list_keys(text_or(prefix, "")))
            joined.append(key).push_back('\0');
        *keys = give_bytes(joined);
        *size = joined.size();
    });
}

ddp_status ddp_store_queue_push(ddp_store* store, const char* queue, const void* value, size_t size,
                                ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_queue_push";
        store_of(store, call)->queue_push(require(queue, call, "queue"), bytes(value, size, call, "value"));
    });
}

ddp_status ddp_store_queue_pop(ddp_store* store, const char* queue, int64_t timeout_ms, void** value, size_t* size,
                               ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_queue_pop";
        require(value, call, "value");
        require(size, call, "size");
        auto element = store_of(store, call)->queue_pop(require(queue, call, "queue"), timeout_ms);
        *value = give_bytes(element);
        *size = element.size();
    });
}

ddp_status ddp_store_queue_size(ddp_store* store, const char* queue, int64_t* count, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_queue_size";
        require(count, call, "count");
        *count = store_of(store, call)->queue_size(require(queue, call, "queue"));
    });
}

ddp_status ddp_store_barrier(ddp_store* store, const char* name, int64_t count, int64_t timeout_ms, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_store_barrier";
        if (count < 1) fail(DDP_ERROR_INVALID_ARGUMENT, call, ": count is ", count, "; it must be at least 1");
        store_of(store, call)->barrier(require(name, call, "name"), count, timeout_ms);
    });
}

void ddp_store_value_free(void* value) {
    std::free(value);
}
