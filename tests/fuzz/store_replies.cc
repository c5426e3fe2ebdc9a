// Any answer of a store's server to any call of a client.
#include "fuzz/target.h"
#include "rendezvous/store.h"
#include "rendezvous/store_engine.h"

namespace fuzz::store_replies {
namespace {

using namespace libddp;

class Engine final : public StoreEngine {
public:
    explicit Engine(std::string_view input) : bytes_(input) {}

    Outcome perform(Request request, std::int64_t) override {
        check(!invalid(request), "a client sends an invalid request");
        ByteWriter payload;
        payload.i64(static_cast<std::int8_t>(bytes_.byte()));
        payload.i64(bytes_.number<std::int16_t>());
        payload.string(bytes_.piece(20));
        Strings values;
        for (std::size_t i = bytes_.below(4); i > 0; --i) values.emplace_back(bytes_.piece(20));
        payload.strings(values);
        return decode_reply({Op::kReply, 1, payload.take()});
    }
    Notifier::Id watch(const std::string&, Notifier::Callback) override { return 0; }
    Notifier::Id watch_connection(Notifier::Callback) override { return 0; }
    void unwatch(Notifier::Id) override {}
    void close() override {}
    std::int64_t alive_until_ms() const override { return 0; }
    bool empty() const { return bytes_.empty(); }
    std::uint8_t choose() { return bytes_.byte(); }
    std::string key() { return std::string(bytes_.piece(20)); }
    std::int64_t number() { return bytes_.number<std::int64_t>(); }

private:
    Reader bytes_;
};

void call(Store& store, Engine& engine) {
    const std::uint8_t which = engine.choose();
    const std::string key = engine.key(), other = engine.key();
    const std::int64_t number = engine.number();
    switch (which % 8) {
        case 0:
            return store.set(key, other);
        case 1:
            store.get(key, number);
            return;
        case 2:
            store.compare_set(key, other, "x");
            return;
        case 3:
            store.add(key, number);
            store.remove(key);
            return;
        case 4:
            store.check({key, other});
            return;
        case 5:
            return store.wait({key, other}, number);
        case 6:
            store.list_keys(key);
            return;
        default:
            store.set_will(key, other, "holder", "value");
            store.remove_will(key);
    }
}

}  // namespace

DDP_FUZZ_TARGET(store_replies, input) {
    const auto engine = std::make_shared<Engine>(input);
    Store store(engine, StoreConfig(), "store");
    while (!engine->empty()) accepts([&] { call(store, *engine); });
}

}  // namespace fuzz::store_replies
