// Answers of etcd, or of something in its place: the JSON of its gateway, and the base64 within.
#include "fuzz/target.h"
#include "rendezvous/etcd/client.h"

DDP_FUZZ_TARGET(etcd_json, input) {
    using namespace libddp;
    fuzz::Reader bytes(input);
    const std::uint8_t what = bytes.byte();
    const std::string_view text = bytes.rest();
    fuzz::accepts([&] {
        switch (what % 4) {
            case 0:
                return void(etcd_json::decode_read(text));
            case 1:
                return void(etcd_json::decode_commit(text));
            case 2:
                return void(etcd_json::decode_news(text));
            default:
                const std::string decoded = etcd_json::from_base64(text);
                fuzz::check(etcd_json::from_base64(etcd_json::to_base64(decoded)) == decoded,
                            "base64 changes bytes");
        }
    });
    fuzz::check(etcd_json::from_base64(etcd_json::to_base64(text)) == text, "base64 changes bytes");
}
