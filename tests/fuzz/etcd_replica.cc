// Keys and values below a store's prefix on etcd, as a damaged etcd or another program left them. A
// replica that loads the snapshot of another makes the same snapshot of it.
#include <string>

#include "fuzz/target.h"
#include "rendezvous/etcd/replica.h"

namespace fuzz::etcd_replica {
namespace {

using namespace libddp;

// Mostly a key of libddp's, of one of a few owners.
std::string key_of(Reader& bytes) {
    const std::uint64_t owner = 1 + bytes.below(3), batch = bytes.below(4), piece = bytes.below(3);
    switch (bytes.below(6)) {
        case 0:
            return EtcdReplica::alive_key(owner);
        case 1:
            return EtcdReplica::bury_key(owner);
        case 2:
            return "head";
        case 3:
            return std::string(bytes.piece(60));
        default:
            return EtcdReplica::log_key(owner, batch, piece);
    }
}

void compare_snapshots(const EtcdReplica& replica) {
    EtcdReplica again;
    EtcdSnapshotHead head;
    head.id = 1;
    const std::string snapshot = replica.snapshot();
    again.load(snapshot, head);
    for (std::uint64_t owner = 1; owner <= 3; ++owner)
        if (replica.is_alive(owner)) again.put(EtcdReplica::alive_key(owner), "", 1);
    check(again.state().bytes() == replica.state().bytes(), "a snapshot has another size");
    for (const auto& owner : replica.to_bury())
        check(owner != 0 || replica.is_alive(0) == again.is_alive(0), "an owner changes");
}

}  // namespace

DDP_FUZZ_TARGET(etcd_replica, input) {
    Reader bytes(input);
    EtcdReplica replica;
    const bool good = accepts([&] {
        if (bytes.flag()) {
            const EtcdSnapshotHead head = EtcdSnapshotHead::decode(bytes.take(24));
            replica.load(bytes.piece(), head);
        }
        for (std::int64_t revision = 1; !bytes.empty(); ++revision) {
            const std::string key = key_of(bytes);
            if (bytes.below(8) == 0)
                replica.removed(key);
            else
                replica.put(key, bytes.piece(), revision);
            replica.to_bury();
            replica.wants_snapshot();
            replica.logged();
            replica.lowest_alive();
        }
    });
    if (good) compare_snapshots(replica);
}

}  // namespace fuzz::etcd_replica
