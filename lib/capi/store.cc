#include "ddp/store.h"

#include "capi/bytes.h"
#include "capi/guard.h"
#include "ddp/store_more.h"
#include "rendezvous/store.h"

using namespace libddp;

namespace {

std::string_view bytes(const void* value, size_t size, const char* name) {
    if (size > 0) require(value, name);
    return {static_cast<const char*>(value), size};
}

Store::Keys key_list(const char* const* keys, size_t count) {
    Store::Keys result;
    if (count > 0) require(keys, "keys");
    for (size_t i = 0; i < count; ++i) result.emplace_back(require(keys[i], "a key"));
    return result;
}

// A reference of the call's own: another thread may free the handle meanwhile.
std::shared_ptr<Store> store_of(ddp_store* store) {
    return require(store, "store")->impl;
}

}  // namespace

void ddp_store_options_init_sized(ddp_store_options* options, size_t size) {
    fill_struct(options, size, ddp_store_options{});
}

ddp_status ddp_store_create(const ddp_store_options* options, ddp_store** store,
                            ddp_error** error) {
    return guard(error, "ddp_store_create", [&] {
        ddp_store_options o;
        ddp_store_options_init(&o);
        read_struct(options, &o, "options");
        require(store, "store");
        require_flags(o.flags, DDP_STORE_INSECURE);
        if (o.timeout_ms < 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "timeout_ms is ", o.timeout_ms,
                      "; it must not be negative");
        StoreConfig config;
        config.uri = require(o.uri, "options->uri");
        config.is_server = o.is_server != 0;
        if (o.timeout_ms > 0) config.timeout_ms = o.timeout_ms;
        if (o.secret) config.secret = o.secret;
        config.insecure = (o.flags & DDP_STORE_INSECURE) != 0;
        *store = new ddp_store{open_store(config), true};
    });
}

void ddp_store_free(ddp_store* store) {
    if (!store || store->origin.inherited()) return;
    guard(nullptr, "ddp_store_free", [&] {
        if (store->owned) store->impl->close();  // wakes calls that still wait in other threads
    });
    free_handle(store);
}

int32_t ddp_store_port(const ddp_store* store) {
    return store ? store->impl->port() : -1;
}

ddp_status ddp_store_set(ddp_store* store, const char* key, const void* value, size_t size,
                         ddp_error** error) {
    return guard(error, "ddp_store_set",
                 [&] { store_of(store)->set(require(key, "key"), bytes(value, size, "value")); });
}

ddp_status ddp_store_get(ddp_store* store, const char* key, int64_t timeout_ms, void** value,
                         size_t* size, ddp_error** error) {
    return guard(error, "ddp_store_get", [&] {
        require(value, "value");
        require(size, "size");
        give_bytes(store_of(store)->get(require(key, "key"), timeout_ms), value, size);
    });
}

ddp_status ddp_store_compare_set(ddp_store* store, const char* key, const void* expected,
                                 size_t expected_size, const void* desired, size_t desired_size,
                                 void** value, size_t* size, ddp_error** error) {
    return guard(error, "ddp_store_compare_set", [&] {
        require(value, "value");
        require(size, "size");
        auto now = store_of(store)->compare_set(require(key, "key"),
                                                bytes(expected, expected_size, "expected"),
                                                bytes(desired, desired_size, "desired"));
        give_bytes(now, value, size);
    });
}

ddp_status ddp_store_add(ddp_store* store, const char* key, int64_t amount, int64_t* sum,
                         ddp_error** error) {
    return guard(error, "ddp_store_add", [&] {
        require(sum, "sum");
        *sum = store_of(store)->add(require(key, "key"), amount);
    });
}

ddp_status ddp_store_check(ddp_store* store, const char* const* keys, size_t count, int32_t* exists,
                           ddp_error** error) {
    return guard(error, "ddp_store_check", [&] {
        require(exists, "exists");
        *exists = store_of(store)->check(key_list(keys, count)) ? 1 : 0;
    });
}

ddp_status ddp_store_wait(ddp_store* store, const char* const* keys, size_t count,
                          int64_t timeout_ms, ddp_error** error) {
    return guard(error, "ddp_store_wait",
                 [&] { store_of(store)->wait(key_list(keys, count), timeout_ms); });
}

ddp_status ddp_store_delete(ddp_store* store, const char* key, int32_t* deleted,
                            ddp_error** error) {
    return guard(error, "ddp_store_delete", [&] {
        bool existed = store_of(store)->remove(require(key, "key"));
        if (deleted) *deleted = existed ? 1 : 0;
    });
}

ddp_status ddp_store_list_keys(ddp_store* store, const char* prefix, void** keys, size_t* size,
                               ddp_error** error) {
    return guard(error, "ddp_store_list_keys", [&] {
        require(keys, "keys");
        require(size, "size");
        std::string joined;
        for (const auto& key : store_of(store)->list_keys(text_or(prefix, "")))
            joined.append(key).push_back('\0');
        give_bytes(joined, keys, size);
    });
}
